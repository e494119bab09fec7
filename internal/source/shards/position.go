package shards

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// mark is what a position says beside its time. It may be that of an earlier time, of
// the last batch of which all was applied: from there the shards are read again. The
// copies are of that time, too, or of that of a schema change amid the next batch: what
// was told of collections up to it is not looked at again, for whoever goes on from the
// position knows the collections as they were after it.
type mark struct {
	T      uint32          `json:"t"` // the time that it is of
	I      uint32          `json:"i"`
	Shards json.RawMessage `json:"shards"` // where each goes on
	Moving []movingMark    `json:"moving,omitempty"`
	Known  *bson.Timestamp `json:"known,omitempty"` // what moves is of this time; none: of the mark's
	Since  topology        `json:"since,omitempty"`
	Hosts  hosts           `json:"hosts,omitempty"` // where the shards are, for one that leaves
}

// movingMark is a Copy; the UUIDs in hex.
type movingMark struct {
	NS string `json:"ns"`
	ID string `json:"id"`
	Of string `json:"of"`
}

// WithCopies is a position of the merged stream at which movePrimary has begun copies.
func (c *Cluster) WithCopies(pos stream.Position, copies []Copy) stream.Position {
	pos.Mark = newMark(pos.Mark, pos.At, copies, c.topology, c.hosts)
	return pos
}

// newMark adds to the mark of the merged stream at a position the copies that
// movePrimary has begun then, which shards there are, and where.
func newMark(merged string, at mongo.OpTime, copies []Copy, there topology, where hosts) string {
	return mark{T: at.TS.T, I: at.TS.I, Shards: json.RawMessage(merged), Moving: movingMarks(copies), Since: there, Hosts: where}.String()
}

func (m mark) String() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // what shards say is JSON, the rest text
	}
	return string(b)
}

// knowing is the mark of a position with the copies at a schema change that comes after it.
func knowing(pos stream.Position, at mongo.OpTime, copies []Copy) (string, error) {
	m, err := readMark(pos)
	if err != nil {
		return "", err
	}
	m.Moving, m.Known = movingMarks(copies), &at.TS
	return m.String(), nil
}

func movingMarks(copies []Copy) (all []movingMark) {
	for _, c := range copies {
		all = append(all, movingMark{NS: c.NS, ID: hex.EncodeToString(c.ID[:]), Of: hex.EncodeToString(c.Of[:])})
	}
	return all
}

// begun is what a position says of where to go on.
type begun struct {
	from   stream.Position // of the merged stream
	copies []Copy
	known  mongo.OpTime // of which time the copies are
}

// split takes a position apart.
func split(pos stream.Position) (begun, error) {
	if !marked(pos) {
		return begun{from: pos, known: pos.At}, nil
	}
	m, err := readMark(pos)
	if err != nil {
		return begun{}, err
	}
	if at := (bson.Timestamp{T: m.T, I: m.I}); at.Before(pos.At.TS) && !at.IsZero() {
		pos.At.TS = at
	}
	b := begun{known: pos.At}
	if m.Known != nil {
		b.known.TS = *m.Known
	}
	for _, c := range m.Moving {
		one := Copy{NS: c.NS}
		id, err1 := hex.DecodeString(c.ID)
		of, err2 := hex.DecodeString(c.Of)
		if err1 != nil || err2 != nil || copy(one.ID[:], id) != len(one.ID) || copy(one.Of[:], of) != len(one.Of) {
			return b, fmt.Errorf("position %s: %q names no collection that is moved", pos.At, pos.Mark)
		}
		b.copies = append(b.copies, one)
	}
	pos.Mark = string(m.Shards)
	b.from = pos
	return b, nil
}

// marked reports a position with a mark, and not one of the merged stream alone.
func marked(pos stream.Position) bool { return strings.HasPrefix(pos.Mark, "{") }

func readMark(pos stream.Position) (m mark, err error) {
	if err := json.Unmarshal([]byte(pos.Mark), &m); err != nil {
		return m, fmt.Errorf("position %s: %q does not say where the shards go on: %w", pos.At, pos.Mark, err)
	}
	return m, nil
}

// ReadFrom is the first entry that any shard has to be read from for a consumer at a
// position.
func ReadFrom(pos stream.Position) (first mongo.OpTime, err error) {
	if pos == (stream.Position{}) {
		return first, nil // nothing was begun
	}
	b, err := split(pos)
	if err != nil {
		return first, err
	}
	parts, err := merge.Parts(b.from)
	for _, p := range parts {
		at, err := oplog.ReadFrom(p)
		if err != nil {
			return first, err
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first, err
}
