package verify

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Kind says how a document differs.
type Kind string

// The kinds of differences.
const (
	Missing Kind = "missing" // only on the source
	Extra   Kind = "extra"   // only on the target
	Content Kind = "content" // on both, with other bytes
	Order   Kind = "order"   // a capped collection's natural order
)

// Difference is one document that differs.
type Difference struct {
	NS       string
	TargetNS string
	ID       bson.RawValue // the source's _id where it has one
	Kind     Kind
	// Detail names the first field that differs, with both values, abbreviated.
	Detail string
}

// MarshalJSON writes the _id as extended JSON.
func (d Difference) MarshalJSON() ([]byte, error) {
	id := json.RawMessage(d.ID.String())
	if !json.Valid(id) {
		id = json.RawMessage(strconv.Quote(fmt.Sprintf("%s %x", d.ID.Type, d.ID.Value)))
	}
	return json.Marshal(struct {
		NS       string          `json:"ns"`
		TargetNS string          `json:"targetNs,omitempty"`
		ID       json.RawMessage `json:"id"`
		Kind     Kind            `json:"kind"`
		Detail   string          `json:"detail,omitempty"`
	}{d.NS, d.TargetNS, id, d.Kind, d.Detail})
}

// SchemaDifference is a difference of collections, options, indexes or views,
// found by the caller.
type SchemaDifference struct {
	NS     string `json:"ns"`
	What   string `json:"what"`
	Detail string `json:"detail"`
}

// Collection reports one pair. Counts and bytes are those of the scans, not of
// the servers' metadata.
type Collection struct {
	NS          string        `json:"ns"`
	TargetNS    string        `json:"targetNs"`
	Method      Method        `json:"method"` // how it was compared in the end
	SourceDocs  int64         `json:"sourceDocs"`
	TargetDocs  int64         `json:"targetDocs"`
	SourceBytes int64         `json:"sourceBytes"`
	TargetBytes int64         `json:"targetBytes"`
	Ranges      int           `json:"ranges"`
	Differences int64         `json:"differences"`
	Rechecked   int64         `json:"rechecked"` // mismatches looked at again
	Settled     int64         `json:"settled"`   // of those, equal in the end
	Duration    time.Duration `json:"durationNs"`
}

// Report is the outcome of a run that came to its end: every document of every
// pair was compared.
type Report struct {
	Same   bool      `json:"same"`
	Online bool      `json:"online"`
	Start  time.Time `json:"start"`
	End    time.Time `json:"end"`

	Collections []Collection `json:"collections"`
	// Count is how many documents differ; Differences describes the first of
	// them (Options.MaxDifferences), and Truncated says that there are more.
	Count       int64        `json:"count"`
	Differences []Difference `json:"differences"`
	Truncated   bool         `json:"truncated"`
	// Schema is the caller's to fill, through AddSchema.
	Schema []SchemaDifference `json:"schema"`
	// Notes are limits of what the figures mean, in words.
	Notes []string `json:"notes,omitempty"`
}

// AddSchema adds differences that are not about documents.
func (r *Report) AddSchema(d ...SchemaDifference) {
	r.Schema = append(r.Schema, d...)
	r.Same = r.Count == 0 && len(r.Schema) == 0
}

// findings collect differences of all workers. Safe for concurrent use.
type findings struct {
	mu    sync.Mutex
	max   int
	list  []Difference
	count int64
	per   map[*collection]*tally
	full  bool // seen is full
}

type tally struct {
	differences, rechecked, settled int64
	seen                            map[string]bool
}

// maxSeen bounds the ids remembered so that a document that both scans report
// counts once; only mismatched ids are remembered.
const maxSeen = 100_000

func newFindings(limit int) *findings {
	return &findings{max: limit, per: map[*collection]*tally{}}
}

// tally is called with the lock held.
func (f *findings) tally(c *collection) *tally {
	t := f.per[c]
	if t == nil {
		t = &tally{seen: map[string]bool{}}
		f.per[c] = t
	}
	return t
}

// recheck counts a look's outcome.
func (f *findings) recheck(c *collection, settled bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tally(c)
	t.rechecked++
	if settled {
		t.settled++
	}
}

// add declares a pair of documents different; nil stands for none.
func (f *findings) add(e *Engine, c *collection, a, b []byte, note string) {
	d := Difference{NS: c.pair.SourceNS, TargetNS: c.pair.TargetNS, Kind: Content}
	doc := a
	switch {
	case a == nil && b == nil:
		return
	case a == nil:
		d.Kind, doc = Extra, b
	case b == nil:
		d.Kind = Missing
	}
	key, _ := appendID(nil, doc)
	d.ID = idValue(string(key))
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tally(c)
	if t.seen[string(key)] {
		return
	}
	if len(t.seen) < maxSeen {
		t.seen[string(key)] = true
	} else {
		f.full = true
	}
	if f.count < int64(f.max) {
		if d.Kind == Content {
			d.Detail = describeDifference(a, b, e.o.IgnoreFieldOrder)
		}
		if note != "" {
			d.Detail = join2(d.Detail, note)
		}
		f.list = append(f.list, d)
	}
	f.countOne(e, t)
}

// addOrder declares a difference of natural order.
func (f *findings) addOrder(e *Engine, c *collection, id bson.RawValue, detail string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count < int64(f.max) {
		f.list = append(f.list, Difference{NS: c.pair.SourceNS, TargetNS: c.pair.TargetNS, ID: id, Kind: Order, Detail: detail})
	}
	f.countOne(e, f.tally(c))
}

func (f *findings) countOne(e *Engine, t *tally) {
	f.count++
	t.differences++
	e.c.differences.Add(1)
}

func join2(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

func (f *findings) report(begin time.Time, online bool, cols []*collection) *Report {
	r := &Report{
		Same: f.count == 0, Online: online, Start: begin, End: time.Now(),
		Collections: make([]Collection, 0, len(cols)),
		Count:       f.count, Differences: f.list, Truncated: f.count > int64(len(f.list)),
		Schema: []SchemaDifference{},
	}
	if r.Differences == nil {
		r.Differences = []Difference{}
	}
	if f.full {
		r.Notes = append(r.Notes, "so many documents differ that some may be counted twice")
	}
	for _, c := range cols {
		t := f.tally(c)
		r.Collections = append(r.Collections, Collection{
			NS: c.pair.SourceNS, TargetNS: c.pair.TargetNS,
			SourceDocs: c.sourceDocs.Load(), TargetDocs: c.targetDocs.Load(),
			SourceBytes: c.sourceBytes.Load(), TargetBytes: c.targetBytes.Load(),
			Method: c.method, Ranges: c.ranges, Differences: t.differences, Rechecked: t.rechecked, Settled: t.settled,
			Duration: time.Unix(0, c.ended.Load()).Sub(c.began),
		})
	}
	return r
}

// finish notes that the last range of a collection was compared.
func (c *collection) finish() {
	now := time.Now()
	c.ended.Store(now.UnixNano())
	c.e.c.collectionsDone.Add(1)
	c.e.o.Log.Info("collection compared", "ns", c.pair.SourceNS, "target", c.pair.TargetNS,
		"sourceDocs", c.sourceDocs.Load(), "targetDocs", c.targetDocs.Load(), "took", now.Sub(c.began).Round(time.Millisecond))
}
