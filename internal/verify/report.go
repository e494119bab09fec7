package verify

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	changes "github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Kind is how a document differs.
type Kind string

const (
	Missing Kind = "missing" // only on the source
	Extra   Kind = "extra"   // only on the target
	Content Kind = "content" // on both, with other bytes
	Order   Kind = "order"   // a capped collection's natural order

	unmapped Kind = "unmapped" // only on the source, as it has to be
)

// Difference is one document that differs.
type Difference struct {
	NS       string `json:"ns"`
	TargetNS string `json:"targetNs,omitempty"`
	// UUID is that of the source's collection; empty where the source has none.
	UUID bson.Binary `json:"-"`
	ID   DocumentID  `json:"id"` // the source's _id where it has one
	Kind Kind        `json:"kind"`
	// Detail names the first field that differs, with both values, abbreviated.
	Detail string `json:"detail,omitempty"`
}

// DocumentID is an _id, in JSON as extended JSON.
type DocumentID struct{ bson.RawValue }

// MarshalJSON writes an invalid value as its type and bytes.
func (id DocumentID) MarshalJSON() ([]byte, error) {
	if text := []byte(id.String()); json.Valid(text) {
		return text, nil
	}
	return json.Marshal(fmt.Sprintf("%s %x", id.Type, id.Value))
}

// SchemaDifference is a difference of collections, options, indexes or views.
type SchemaDifference struct {
	NS     string `json:"ns"`
	What   string `json:"what"`
	Detail string `json:"detail"`
	// Deferred says that the target gets it later, from the job that deferred it.
	Deferred bool `json:"deferred,omitempty"`
}

// Collection reports one pair. Counts and bytes are those of the scans, not of the servers'
// metadata.
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
	Skipped     *Skipped      `json:"skipped,omitempty"`  // what differs as it has to
	Unmapped    int64         `json:"unmapped,omitempty"` // not on the target, for the rules cannot map them
	Rechecked   int64         `json:"rechecked"`          // mismatches looked at again
	Settled     int64         `json:"settled"`            // of those, equal in the end
	Duration    time.Duration `json:"durationNs"`
}

// Report is the outcome of a complete run: every document of every pair was compared, unless it is
// StructureOnly or has a Share.
type Report struct {
	Same   bool `json:"same"`
	Online bool `json:"online"`
	// StructureOnly says that no document was compared.
	StructureOnly bool `json:"structureOnly,omitempty"`
	// Share is how much of each collection was compared; 0 is all.
	Share float64   `json:"share,omitempty"`
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`

	Collections []Collection `json:"collections"`
	// Count is how many documents differ. Differences has the first (Options.MaxDifferences),
	// Truncated says that there are more.
	Count       int64        `json:"count"`
	Differences []Difference `json:"differences"`
	Truncated   bool         `json:"truncated"`
	// Schema is filled by the caller with AddSchema.
	Schema []SchemaDifference `json:"schema"`
	// Expected are differences of collections, options, indexes and views that a skipped operation
	// explains, or that a job has deferred.
	Expected []SchemaDifference `json:"expected,omitempty"`
	// Notes are limits of what the figures mean, in words.
	Notes []string `json:"notes,omitempty"`
}

// AddSchema adds differences that are not about documents.
func (r *Report) AddSchema(d ...SchemaDifference) {
	r.Schema = append(r.Schema, d...)
	r.Same = r.Count == 0 && len(r.Schema) == 0
}

type findings struct {
	mu   sync.Mutex
	list []Difference
	full bool // a collection has too many ids to remember

	notes []string // for the report
}

// maxSeen bounds the remembered _ids of differences, by which a document counts once.
const maxSeen = 100_000

func (c *collection) differ(a, b []byte, note string) {
	kind := Content
	switch {
	case a == nil:
		kind = Extra
	case b == nil:
		kind = Missing
		if x := apart(a); len(x) == 1 && c.pair.Fields != nil && transform.IsUnmapped(x[0]) {
			kind = unmapped
		}
	}
	expired := func() bool {
		return kind == Extra && c.pair.Expired != nil && !slices.ContainsFunc(apart(b),
			func(doc []byte) bool { return !c.pair.Expired(doc) })
	}
	c.add(kind, keyOf(a, b), [2][]byte{a, b}, expired, func() string {
		var details []string
		x, y := apart(a), apart(b)
		switch {
		case len(x) > 1 || len(y) > 1:
			details = append(details, fmt.Sprintf(
				"documents of this _id, on different shards: %d on the source, %d on the target", len(x), len(y)))
		case kind == Content:
			details = append(details, differing(a, b, "", c.e.o.IgnoreFieldOrder, 0))
		}
		if note != "" {
			details = append(details, note)
		}
		return strings.Join(details, "; ")
	})
}

// add counts a difference, once for each document except for Order, and lists it if there is room.
func (c *collection) add(kind Kind, key string, sides [2][]byte, expired func() bool, detail func() string) {
	f := &c.e.findings
	f.mu.Lock()
	defer f.mu.Unlock()
	if kind != Order {
		if c.seen[key] {
			return
		}
		if len(c.seen) < maxSeen {
			c.seen[key] = true
		} else {
			f.full = true
		}
	}
	if kind == unmapped {
		c.row.Unmapped++
		return
	}
	if c.pair.expects(kind, expired) {
		c.row.Skipped = c.row.Skipped.plus(c.pair.Skips, kind)
		return
	}
	d := Difference{NS: c.pair.Source, TargetNS: c.pair.Target, UUID: c.pair.UUID, ID: DocumentID{idValue(key)},
		Kind: kind}
	if list, found := len(f.list) < c.e.o.MaxDifferences, c.e.o.Found; list || found != nil {
		if d.Detail = detail(); list {
			f.list = append(f.list, d)
		}
		if found != nil {
			found(d, apart(sides[source]), apart(sides[target]))
		}
	}
	c.row.Differences++
	c.e.c.differences.Add(1)
}

func (e *Engine) report(begin time.Time, cols []*collection) *Report {
	count := e.c.differences.Load()
	r := &Report{
		Same: count == 0, Online: e.o.Online, StructureOnly: e.o.StructureOnly, Start: begin, End: time.Now(),
		Collections: make([]Collection, 0, len(cols)),
		Count:       count, Truncated: count > int64(len(e.findings.list)),
		Differences: append([]Difference{}, e.findings.list...), Schema: []SchemaDifference{},
	}
	if e.o.sampled() {
		r.Share = e.o.Share
	}
	r.Notes = append(r.Notes, e.findings.notes...)
	if e.findings.full {
		r.Notes = append(r.Notes, "so many documents differ that some may be counted twice")
	}
	for _, c := range cols {
		c.row.SourceDocs, c.row.TargetDocs = c.docs[source].Load(), c.docs[target].Load()
		c.row.SourceBytes, c.row.TargetBytes = c.bytes[source].Load(), c.bytes[target].Load()
		r.Collections = append(r.Collections, c.row)
	}
	return r
}

func (c *collection) finish() {
	c.row.Duration = time.Since(c.began)
	c.e.c.collectionsDone.Add(1)
	c.e.o.Log.Info("collection compared", "ns", c.pair.Source, "target", c.pair.Target,
		"sourceDocs", c.docs[source].Load(), "targetDocs", c.docs[target].Load(),
		"took", c.row.Duration.Round(time.Millisecond))
}

// Skipped counts documents that differ because operations are left out.
type Skipped struct {
	Operations string `json:"operations"`
	Left       int64  `json:"left"`    // only the target has them
	Missing    int64  `json:"missing"` // only the source has them
	Content    int64  `json:"content"` // both have them, with other content
}

func (s *Skipped) String() string {
	var text string
	for _, part := range []struct {
		n    int64
		what string
	}{{s.Left, "left on the target"}, {s.Missing, "not on the target"}, {s.Content, "of other content"}} {
		if part.n > 0 {
			text += fmt.Sprintf("%s: %s, ", part.what, humanize.Comma(part.n))
		}
	}
	return text + s.Operations + " skipped"
}

func (s *Skipped) plus(ops changes.Ops, kind Kind) *Skipped {
	if s == nil {
		s = &Skipped{Operations: ops.String()}
	}
	switch kind {
	case Extra:
		s.Left++
	case Missing:
		s.Missing++
	default:
		s.Content++
	}
	return s
}

// expects reports whether skipped operations may explain a difference. expired says whether a
// document of the target alone has expired.
func (p *Pair) expects(kind Kind, expired func() bool) bool {
	const gone, made = changes.OpDelete | changes.OpDrop, changes.OpInsert | changes.OpCreate
	const changed = changes.OpUpdate | changes.OpReplace
	if p.Skips == 0 || kind == Order {
		return false
	}
	// What goes by the name on the target may be what the source had before.
	if p.Skips.Has(changes.OpRename) || p.Skips.Has(gone) && p.Skips.Has(made) {
		return true
	}
	if p.Filter != nil && p.Skips.Has(changed) { // in the filter or out of it
		return true
	}
	switch kind {
	case Extra:
		return p.Skips.Has(gone) || p.Skips.Has(changes.OpTTL) && expired()
	case Missing:
		return p.Skips.Has(made)
	}
	return p.Skips.Has(changed)
}

func apart(docs []byte) (all [][]byte) {
	doc, docs, ok := bsoncore.ReadDocument(docs)
	for ; ok; doc, docs, ok = bsoncore.ReadDocument(docs) {
		all = append(all, doc)
	}
	return all
}
