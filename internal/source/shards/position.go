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

// token is the resume token of a position: where each shard goes on. It may be that of an
// earlier time, of the last batch that was applied completely. From there the shards are read
// again. The copies are of that time, too, or of that of a schema change amid the next batch.
// Changes of collections up to it are skipped, for a consumer that goes on from the position
// has the collections as they were after it.
type token struct {
	T        uint32          `json:"t"` // its time
	I        uint32          `json:"i"`
	Shards   json.RawMessage `json:"shards"` // where each goes on
	Copies   []copyToken     `json:"moving,omitempty"`
	CopiesAt *bson.Timestamp `json:"known,omitempty"` // of which time the copies are; nil: of the token's
	Topology topology        `json:"since,omitempty"`
	Hosts    hosts           `json:"hosts,omitempty"` // for a shard that leaves
}

// copyToken is a Copy; the UUIDs in hex.
type copyToken struct {
	NS string `json:"ns"`
	ID string `json:"id"`
	Of string `json:"of"`
}

// WithCopies is a position of the merged stream at which movePrimary had begun copies.
func (c *Cluster) WithCopies(pos stream.Position, copies []Copy) stream.Position {
	pos.Mark = newToken(pos.Mark, pos.At, copies, c.topology, c.hosts)
	return pos
}

// newToken adds to the token of the merged stream at a position the copies that movePrimary
// had begun then, and the shards.
func newToken(merged string, at mongo.OpTime, copies []Copy, topology topology, hosts hosts) string {
	return token{T: at.TS.T, I: at.TS.I, Shards: json.RawMessage(merged), Copies: copyTokens(copies),
		Topology: topology, Hosts: hosts}.String()
}

func (m token) String() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // the shards' tokens are JSON, the rest text
	}
	return string(b)
}

// tokenWithCopies is the token of a position with the copies at a schema change after it.
func tokenWithCopies(pos stream.Position, at mongo.OpTime, copies []Copy) (string, error) {
	m, err := parseToken(pos)
	if err != nil {
		return "", err
	}
	m.Copies, m.CopiesAt = copyTokens(copies), &at.TS
	return m.String(), nil
}

func copyTokens(copies []Copy) (all []copyToken) {
	for _, c := range copies {
		all = append(all, copyToken{NS: c.NS, ID: hex.EncodeToString(c.ID[:]), Of: hex.EncodeToString(c.Of[:])})
	}
	return all
}

// resumePoint is where to go on for a consumer at a position.
type resumePoint struct {
	from       stream.Position // of the merged stream
	copies     []Copy
	knownUntil mongo.OpTime // of which time the copies are
}

// parsePosition reads a position's token.
func parsePosition(pos stream.Position) (resumePoint, error) {
	if !hasToken(pos) {
		return resumePoint{from: pos, knownUntil: pos.At}, nil
	}
	m, err := parseToken(pos)
	if err != nil {
		return resumePoint{}, err
	}
	if at := (bson.Timestamp{T: m.T, I: m.I}); at.Before(pos.At.TS) && !at.IsZero() {
		pos.At.TS = at
	}
	b := resumePoint{knownUntil: pos.At}
	if m.CopiesAt != nil {
		b.knownUntil.TS = *m.CopiesAt
	}
	for _, c := range m.Copies {
		one := Copy{NS: c.NS}
		id, err1 := hex.DecodeString(c.ID)
		of, err2 := hex.DecodeString(c.Of)
		if err1 != nil || err2 != nil || copy(one.ID[:], id) != len(one.ID) || copy(one.Of[:], of) != len(one.Of) {
			return b, fmt.Errorf("position %s: %q has no valid UUIDs of collections that move", pos.At, pos.Mark)
		}
		b.copies = append(b.copies, one)
	}
	pos.Mark = string(m.Shards)
	b.from = pos
	return b, nil
}

// hasToken reports a position with such a token, and not one of the merged stream alone.
func hasToken(pos stream.Position) bool { return strings.HasPrefix(pos.Mark, "{") }

func parseToken(pos stream.Position) (m token, err error) {
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
	b, err := parsePosition(pos)
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
