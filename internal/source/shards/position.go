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

// token is the resume token of a position: where to resume each shard. It may be from an earlier time,
// the end of the last completely applied batch; shards are read again from there. Copies are as of the
// same time, or of a schema change in the next batch. Schema changes up to the position are skipped,
// since the consumer's collections include them.
type token struct {
	T        uint32          `json:"t"` // time
	I        uint32          `json:"i"`
	Shards   json.RawMessage `json:"shards"` // token of merge
	Copies   []copyToken     `json:"moving,omitempty"`
	CopiesAt *bson.Timestamp `json:"known,omitempty"` // time of the copies; nil: the token's
	Topology topology        `json:"since,omitempty"`
	Hosts    hosts           `json:"hosts,omitempty"` // for shards that leave
}

// copyToken is a Copy with UUIDs in hex.
type copyToken struct {
	NS string `json:"ns"`
	ID string `json:"id"`
	Of string `json:"of"`
}

// WithCopies adds copies of movePrimary to a position of the merged stream.
func (c *Cluster) WithCopies(pos stream.Position, copies []Copy) stream.Position {
	pos.Mark = newToken(pos.Mark, pos.At, copies, c.topology, c.hosts)
	return pos
}

// newToken adds copies and shards to a token of the merged stream.
func newToken(merged string, at mongo.OpTime, copies []Copy, topology topology, hosts hosts) string {
	return token{T: at.TS.T, I: at.TS.I, Shards: json.RawMessage(merged), Copies: copyTokens(copies),
		Topology: topology, Hosts: hosts}.String()
}

func (m token) String() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // merge's token is JSON
	}
	return string(b)
}

// tokenWithCopies returns the token of a position with the copies at a later schema change.
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

// resumePoint is where to resume for a consumer at a position.
type resumePoint struct {
	from       stream.Position // of the merged stream
	copies     []Copy
	knownUntil mongo.OpTime // time of the copies
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
			return b, fmt.Errorf("position %s: %q has invalid UUIDs of moving collections", pos.At, pos.Mark)
		}
		b.copies = append(b.copies, one)
	}
	pos.Mark = string(m.Shards)
	b.from = pos
	return b, nil
}

// hasToken reports a position with a token of this package, not one of merge alone.
func hasToken(pos stream.Position) bool { return strings.HasPrefix(pos.Mark, "{") }

func parseToken(pos stream.Position) (m token, err error) {
	if err := json.Unmarshal([]byte(pos.Mark), &m); err != nil {
		return m, fmt.Errorf("position %s: %q is not a resume token of shards: %w", pos.At, pos.Mark, err)
	}
	return m, nil
}

// ReadFrom returns the oldest entry that a consumer at a position needs of any shard.
func ReadFrom(pos stream.Position) (first mongo.OpTime, err error) {
	if pos == (stream.Position{}) {
		return first, nil
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
