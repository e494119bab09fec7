package transform

import (
	"math/bits"
	"sync/atomic"

	"github.com/millrace/millrace/internal/stream"
)

// Counters count the effects of a Set's rules. They are safe for concurrent use. Nil counts nothing.
type Counters struct {
	filters []filterCounts
	skips   []skipCounts
	maps    []mapCounts
	marks   []markCounts
}

type markCounts struct {
	rule   string
	marked atomic.Int64
}

// MarkCount is the effect of a rule of soft deletion since the start of the process.
type MarkCount struct {
	Rule   string `json:"rule"`
	Marked int64  `json:"marked"` // deletions that mark documents
}

type mapCounts struct {
	rule                                                                string
	copied, changed, written, translated, passed, nothing, read, failed atomic.Int64
}

// FieldsCount is the effect of a mapping since the start of the process.
type FieldsCount struct {
	Rule       string `json:"rule"`
	Seen       int64  `json:"seen"`       // documents of the copy, and changes
	Copied     int64  `json:"copied"`     // documents of the copy
	Changed    int64  `json:"changed"`    // of them, those that differ on the target
	Written    int64  `json:"written"`    // changes that write a complete document
	Translated int64  `json:"translated"` // updates that were translated
	Passed     int64  `json:"passed"`     // updates of fields without rules
	Dropped    int64  `json:"dropped"`    // updates of nothing that the target has
	Read       int64  `json:"read"`       // updates that needed the document
	Failed     int64  `json:"failed"`     // documents that could not be mapped
}

type skipCounts struct {
	rule   string
	passed atomic.Int64
	ops    [4]atomic.Int64 // insert, update, replace, delete
	ttl    atomic.Int64    // passed, and of no effect
}

func (c *skipCounts) add(op stream.Ops) { c.ops[bits.TrailingZeros16(uint16(op))].Add(1) }

// SkipCount is the effect of a rule of operations since the start of the process.
type SkipCount struct {
	Rule string `json:"rule"`
	// Seen counts all operations on documents, Kept those that passed.
	Seen int64 `json:"seen"`
	Kept int64 `json:"kept"`
	// Skipped counts the operations on documents, by name.
	Skipped map[string]int64 `json:"skipped"`
}

type filterCounts struct {
	rule                                                  string
	copied, leftOut, unread, kept, dropped, entered, left atomic.Int64
}

// FilterCount is the effect of a filter since the start of the process.
type FilterCount struct {
	Rule    string `json:"rule"`
	Seen    int64  `json:"seen"`    // documents of the copy, and changes
	Copied  int64  `json:"copied"`  // documents of the copy in the filter
	LeftOut int64  `json:"leftOut"` // and outside
	Unread  int64  `json:"unread"`  // and outside, by the source: an estimate
	Kept    int64  `json:"kept"`    // changes that passed
	Dropped int64  `json:"dropped"` // changes of documents outside
	// Entered and Left are documents that a change may have moved into the filter, or out of it, and
	// that were inside then, or outside.
	Entered int64 `json:"entered"`
	Left    int64 `json:"left"`
}

// NewCounters returns counters for rules, nil without rules that count.
func NewCounters(s *Set) *Counters {
	if s == nil || len(s.filters)+len(s.skips)+len(s.mappings)+len(s.softDeletes) == 0 {
		return nil
	}
	t := &Counters{make([]filterCounts, len(s.filters)), make([]skipCounts, len(s.skips)),
		make([]mapCounts, len(s.mappings)), make([]markCounts, len(s.softDeletes))}
	for i := range t.filters {
		t.filters[i].rule = s.filters[i].String()
	}
	for i := range t.skips {
		t.skips[i].rule = s.skips[i].String()
	}
	for i := range t.maps {
		t.maps[i].rule = s.mappings[i].String()
	}
	for i := range t.marks {
		t.marks[i].rule = s.softDeletes[i].String()
	}
	return t
}

func (t *Counters) all() Counters {
	if t == nil {
		return Counters{}
	}
	return *t
}

// countsOf returns the counts of a rule by its index; others count for nobody.
func countsOf[T any](list []T, i int) *T {
	if i < 0 || i >= len(list) {
		return new(T)
	}
	return &list[i]
}

func (t *Counters) Marks() (out []MarkCount) {
	marks := t.all().marks
	for i := range marks {
		out = append(out, MarkCount{Rule: marks[i].rule, Marked: marks[i].marked.Load()})
	}
	return out
}

func (t *Counters) Fields() (out []FieldsCount) {
	maps := t.all().maps
	for i := range maps {
		c := &maps[i]
		one := FieldsCount{Rule: c.rule, Copied: c.copied.Load(), Changed: c.changed.Load(), Written: c.written.Load(),
			Translated: c.translated.Load(), Passed: c.passed.Load(), Dropped: c.nothing.Load(), Read: c.read.Load(),
			Failed: c.failed.Load()}
		one.Seen = one.Copied + one.Written + one.Translated + one.Passed + one.Dropped + one.Read
		out = append(out, one)
	}
	return out
}

func (t *Counters) Skips() (out []SkipCount) {
	skips := t.all().skips
	for i := range skips {
		c := &skips[i]
		one := SkipCount{Rule: c.rule, Kept: c.passed.Load(), Skipped: map[string]int64{}}
		one.Seen = one.Kept
		for op := range c.ops {
			if n := c.ops[op].Load(); n > 0 {
				one.Skipped[stream.Ops(1<<op).String()] = n
				one.Seen += n
			}
		}
		if n := c.ttl.Load(); n > 0 {
			one.Skipped[stream.OpTTL.String()] = n
		}
		out = append(out, one)
	}
	return out
}

func (t *Counters) List() (out []FilterCount) {
	filters := t.all().filters
	for i := range filters {
		c := &filters[i]
		one := FilterCount{Rule: c.rule, Copied: c.copied.Load(), LeftOut: c.leftOut.Load(), Unread: c.unread.Load(),
			Kept: c.kept.Load(), Dropped: c.dropped.Load(), Entered: c.entered.Load(), Left: c.left.Load()}
		one.Seen = one.Copied + one.LeftOut + one.Kept + one.Dropped + one.Entered + one.Left
		out = append(out, one)
	}
	return out
}

// Expired returns the counter of deletions of expired documents that were left out, or nil.
func (t *Counters) Expired(r *Route) func(n int64) {
	if t == nil || r.skip < 0 {
		return nil
	}
	return func(n int64) { t.skips[r.skip].ttl.Add(n) }
}

// Unread returns the counter of documents that the source left out of the copy, or nil.
func (t *Counters) Unread(r *Route) func(n int64) {
	if t == nil || r.filter < 0 {
		return nil
	}
	return func(n int64) { t.filters[r.filter].unread.Add(n) }
}

// Copied returns all counts of the copy, in a fixed order.
func (t *Counters) Copied() (out []int64) {
	for _, n := range t.copied() {
		out = append(out, n.Load())
	}
	return out
}

// AddCopied adds the difference of two results of Copied of other counters with the same rules. before
// may be nil. Results for other rules are ignored.
func (t *Counters) AddCopied(before, after []int64) {
	counts := t.copied()
	if len(after) != len(counts) || before != nil && len(before) != len(after) {
		return
	}
	for i, n := range counts {
		add := after[i]
		if before != nil {
			add -= before[i]
		}
		n.Add(max(add, 0))
	}
}

func (t *Counters) copied() (out []*atomic.Int64) {
	lists := t.all()
	for i := range lists.filters {
		c := &lists.filters[i]
		out = append(out, &c.copied, &c.leftOut, &c.unread)
	}
	for i := range lists.maps {
		c := &lists.maps[i]
		out = append(out, &c.copied, &c.changed, &c.failed)
	}
	return out
}
