package transform

import (
	"math/bits"
	"sync/atomic"

	"github.com/millrace/millrace/internal/stream"
)

// Counters count what the rules of a Set have done since they were made. They are safe for
// concurrent use. Nil counts nothing.
type Counters struct {
	filters []count
	skips   []skipCount
	maps    []mapCount
	marks   []markCount
}

// markCount is of one rule of soft deletion.
type markCount struct {
	rule   string
	marked atomic.Int64
}

// MarkCount is what one rule of soft deletion has done since the process started.
type MarkCount struct {
	Rule   string `json:"rule"`
	Marked int64  `json:"marked"` // deletions that mark documents in place of deleting them
}

// marked counts for the rule with an index, which is below 0 for none.
func (t *Counters) marked(i int) *markCount {
	if t == nil || i < 0 {
		return &markCount{}
	}
	return &t.marks[i]
}

// Marks is a snapshot, rule by rule.
func (t *Counters) Marks() (out []MarkCount) {
	if t == nil {
		return nil
	}
	for i := range t.marks {
		out = append(out, MarkCount{Rule: t.marks[i].rule, Marked: t.marks[i].marked.Load()})
	}
	return out
}

// mapCount is of one mapping of fields.
type mapCount struct {
	rule                                                                string
	copied, changed, written, translated, passed, nothing, read, failed atomic.Int64
}

// FieldsCount is what one mapping has done since the process started.
type FieldsCount struct {
	Rule       string `json:"rule"`
	Seen       int64  `json:"seen"`       // documents of the copy and changes, all of those below
	Copied     int64  `json:"copied"`     // documents of the copy that were mapped
	Changed    int64  `json:"changed"`    // of them, those that are other documents on the target
	Written    int64  `json:"written"`    // changes that write a document whole
	Translated int64  `json:"translated"` // updates that were translated
	Passed     int64  `json:"passed"`     // updates of no field that is mapped
	Dropped    int64  `json:"dropped"`    // updates of nothing that the target has
	Read       int64  `json:"read"`       // updates that needed the whole document
	Failed     int64  `json:"failed"`     // documents that could not be mapped
}

// mapped counts for the mapping with an index, which is below 0 for none.
func (t *Counters) mapped(i int) *mapCount {
	if t == nil || i < 0 {
		return &mapCount{}
	}
	return &t.maps[i]
}

// Fields is a snapshot, mapping by mapping.
func (t *Counters) Fields() (out []FieldsCount) {
	if t == nil {
		return nil
	}
	for i := range t.maps {
		c := &t.maps[i]
		one := FieldsCount{Rule: c.rule, Copied: c.copied.Load(), Changed: c.changed.Load(), Written: c.written.Load(),
			Translated: c.translated.Load(),
			Passed:     c.passed.Load(), Dropped: c.nothing.Load(), Read: c.read.Load(), Failed: c.failed.Load()}
		one.Seen = one.Copied + one.Written + one.Translated + one.Passed + one.Dropped + one.Read
		out = append(out, one)
	}
	return out
}

// skipCount is of one rule of operations on documents.
type skipCount struct {
	rule   string
	passed atomic.Int64
	ops    [4]atomic.Int64 // insert, update, replace, delete
	ttl    atomic.Int64    // which have passed, and were none to the target
}

func (c *skipCount) add(op stream.Ops) { c.ops[bits.TrailingZeros16(uint16(op))].Add(1) }

// SkipCount is what one rule has left out since the process started.
type SkipCount struct {
	Rule string `json:"rule"`
	// Seen counts all operations on documents, Kept those that passed.
	Seen int64 `json:"seen"`
	Kept int64 `json:"kept"`
	// Skipped counts the operations on documents, by name.
	Skipped map[string]int64 `json:"skipped"`
}

// count is of one filter.
type count struct {
	rule                                                  string
	copied, leftOut, unread, kept, dropped, entered, left atomic.Int64
}

// FilterCount is what one filter has done since the process started.
type FilterCount struct {
	Rule    string `json:"rule"`
	Seen    int64  `json:"seen"`    // documents of the copy and changes, all of those below
	Copied  int64  `json:"copied"`  // documents of the copy that it kept
	LeftOut int64  `json:"leftOut"` // and those that it did not
	// Unread is about how many documents the source has left out of the copy by the filter: an
	// estimate, of documents that were not seen.
	Unread  int64 `json:"unread"`
	Kept    int64 `json:"kept"`    // changes that passed
	Dropped int64 `json:"dropped"` // changes of documents that are not in it
	// Entered and Left are documents that a change may have brought into the filter, or
	// taken out of it, and that were in it then, or not.
	Entered int64 `json:"entered"`
	Left    int64 `json:"left"`
}

// NewCounters counts for rules.
func NewCounters(s *Set) *Counters {
	if s == nil || len(s.filters)+len(s.skips)+len(s.mappings)+len(s.softDeletes) == 0 {
		return nil
	}
	t := &Counters{filters: make([]count, len(s.filters)), skips: make([]skipCount, len(s.skips)),
		maps:  make([]mapCount, len(s.mappings)),
		marks: make([]markCount, len(s.softDeletes))}
	for i := range s.softDeletes {
		t.marks[i].rule = s.softDeletes[i].String()
	}
	for i := range s.filters {
		t.filters[i].rule = s.filters[i].String()
	}
	for i := range s.skips {
		t.skips[i].rule = s.skips[i].String()
	}
	for i := range s.mappings {
		t.maps[i].rule = s.mappings[i].String()
	}
	return t
}

// skipped counts for the rule of operations with an index, which is below 0 for none.
func (t *Counters) skipped(i int) *skipCount {
	if t == nil || i < 0 {
		return &skipCount{}
	}
	return &t.skips[i]
}

// Skips is a snapshot, rule by rule.
func (t *Counters) Skips() (out []SkipCount) {
	if t == nil {
		return nil
	}
	for i := range t.skips {
		one := SkipCount{Rule: t.skips[i].rule, Kept: t.skips[i].passed.Load(), Skipped: map[string]int64{}}
		one.Seen = one.Kept
		for op := range t.skips[i].ops {
			if n := t.skips[i].ops[op].Load(); n > 0 {
				one.Skipped[stream.Ops(1<<op).String()] = n
				one.Seen += n
			}
		}
		if n := t.skips[i].ttl.Load(); n > 0 {
			one.Skipped[stream.OpTTL.String()] = n
		}
		out = append(out, one)
	}
	return out
}

// Expired gives what counts deletions of expired documents that were
// left out; nil counts nothing.
func (t *Counters) Expired(r *Route) func(n int64) {
	if t == nil || r.skip < 0 {
		return nil
	}
	return func(n int64) { t.skips[r.skip].ttl.Add(n) }
}

// Unread gives what counts documents that the source has left out of
// the copy; nil counts nothing.
func (t *Counters) Unread(r *Route) func(n int64) {
	if t == nil || r.filter < 0 {
		return nil
	}
	return func(n int64) { t.filters[r.filter].unread.Add(n) }
}

// of counts for the filter with an index, which is below 0 for none.
func (t *Counters) of(i int) *count {
	if t == nil || i < 0 {
		return &count{}
	}
	return &t.filters[i]
}

// List is a snapshot, filter by filter.
func (t *Counters) List() (out []FilterCount) {
	if t == nil {
		return nil
	}
	for i := range t.filters {
		c := &t.filters[i]
		one := FilterCount{Rule: c.rule, Copied: c.copied.Load(), LeftOut: c.leftOut.Load(), Unread: c.unread.Load(),
			Kept: c.kept.Load(), Dropped: c.dropped.Load(),
			Entered: c.entered.Load(), Left: c.left.Load()}
		one.Seen = one.Copied + one.LeftOut + one.Kept + one.Dropped + one.Entered + one.Left
		out = append(out, one)
	}
	return out
}

// Copied is what the rules have done to documents of the copy, in an order of its own.
func (t *Counters) Copied() (out []int64) {
	for _, n := range t.copied() {
		out = append(out, n.Load())
	}
	return out
}

// AddCopied adds what other counters of the same rules have counted from one Copied to a later
// one. before may be nil. Counters of other rules add nothing.
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
	if t == nil {
		return nil
	}
	for i := range t.filters {
		c := &t.filters[i]
		out = append(out, &c.copied, &c.leftOut, &c.unread)
	}
	for i := range t.maps {
		c := &t.maps[i]
		out = append(out, &c.copied, &c.changed, &c.failed)
	}
	return out
}
