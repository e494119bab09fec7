package shards

// Known is how many collections are remembered.
func (o *Once) Known() int { return len(o.colls) }
