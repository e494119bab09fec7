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
// the last batch of which all was applied.
type mark struct {
	T      uint32          `json:"t"` // the time that it is of
	I      uint32          `json:"i"`
	Shards json.RawMessage `json:"shards"` // where each goes on
	Moving []movingMark    `json:"moving,omitempty"`
	Since  topology        `json:"since,omitempty"`
}

// movingMark is a Copy; the UUIDs in hex.
type movingMark struct {
	NS string `json:"ns"`
	ID string `json:"id"`
	Of string `json:"of"`
}

// WithCopies is a position of the merged stream at which movePrimary has begun copies.
func (c *Cluster) WithCopies(pos stream.Position, copies []Copy) stream.Position {
	pos.Mark = newMark(pos.Mark, pos.At, copies, c.topology)
	return pos
}

// newMark adds to the mark of the merged stream at a position the copies that
// movePrimary has begun then, and which shards there are.
func newMark(merged string, at mongo.OpTime, copies []Copy, there topology) string {
	m := mark{T: at.TS.T, I: at.TS.I, Shards: json.RawMessage(merged), Since: there}
	for _, c := range copies {
		m.Moving = append(m.Moving, movingMark{NS: c.NS, ID: hex.EncodeToString(c.ID[:]), Of: hex.EncodeToString(c.Of[:])})
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // merged is JSON, the rest text
	}
	return string(b)
}

// split takes a position apart: that of the merged stream which the mark is of, and the
// copies at that.
func split(pos stream.Position) (stream.Position, []Copy, error) {
	if !marked(pos) {
		return pos, nil, nil
	}
	m, err := readMark(pos)
	if err != nil {
		return pos, nil, err
	}
	if at := (bson.Timestamp{T: m.T, I: m.I}); at.Before(pos.At.TS) && !at.IsZero() {
		pos.At.TS = at
	}
	var copies []Copy
	for _, c := range m.Moving {
		one := Copy{NS: c.NS}
		id, err1 := hex.DecodeString(c.ID)
		of, err2 := hex.DecodeString(c.Of)
		if err1 != nil || err2 != nil || copy(one.ID[:], id) != len(one.ID) || copy(one.Of[:], of) != len(one.Of) {
			return pos, nil, fmt.Errorf("position %s: %q names no collection that is moved", pos.At, pos.Mark)
		}
		copies = append(copies, one)
	}
	pos.Mark = string(m.Shards)
	return pos, copies, nil
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
	pos, _, err = split(pos)
	if err != nil {
		return first, err
	}
	parts, err := merge.Parts(pos)
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
