package mongosink

// Details counts what a MongoDB target took.
type Details struct {
	Statements int64 // operations sent
	Batched    int64 // of those, updates sent in transactions
	Rewritten  int64 // documents updated by read-modify-write
	Skipped    int64 // updates of documents that are gone later, paths that no longer fit, what a capped collection has
	Missing    int64 // deletes of documents that were not there
}

// Details is a snapshot.
func (e *Engine) Details() Details {
	w := &e.writers.Stats
	return Details{Statements: w.Statements.Load(), Batched: w.Batched.Load(), Rewritten: w.Rewritten.Load(),
		Missing: w.Missing.Load(), Skipped: w.Misfits.Load() + e.resolver.Skips() + e.shared.passed.Load()}
}
