package shards

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// decisionPoll is the interval between reads of prepared transactions.
const decisionPoll = 10 * time.Millisecond

// Start returns a position to read from. Shards that are read after Start contain everything up to it,
// and the stream from it contains everything later. Start waits for the decision on prepared
// transactions.
//
// The order of its steps matters. A transaction that was prepared before the shard's own position, and
// is undecided when Start lists it, is read again from its first entry. A transaction that was decided
// in between has a time before the cluster's position, which is read last. Each shard must pass that
// position, since one whose clock is behind could still write before it.
func (c *Cluster) Start(ctx context.Context) (stream.Position, error) {
	parts := make([]stream.Position, len(c.Shards))
	err := c.Each(ctx, func(ctx context.Context, i int) error {
		at, err := c.Shards[i].Committed(ctx)
		if err != nil {
			return err
		}
		from := at
		open, err := listPrepared(ctx, c.Shards[i])
		for _, t := range open {
			from = mongo.MinOpTime(from, t.Start)
		}
		parts[i] = oplog.Position(at, from)
		return err
	})
	if err != nil {
		return stream.Position{}, err
	}
	newest, err := c.Committed(ctx)
	if err == nil {
		err = c.Each(ctx, func(ctx context.Context, i int) error { return c.Pass(ctx, c.Shards[i], newest) })
	}
	if err != nil {
		return stream.Position{}, err
	}
	for _, s := range c.Shards {
		if err := c.awaitDecisions(ctx, s, newest); err != nil {
			return stream.Position{}, fmt.Errorf("shard %s: %w", s.Name, err)
		}
	}
	var names []string
	byName := map[string]stream.Position{}
	for i, s := range c.Shards {
		names = append(names, s.Name)
		byName[s.Name] = parts[i]
	}
	return merge.Position(newest, names, byName)
}

// Each calls do for all shards concurrently.
func (c *Cluster) Each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, s := range c.Shards {
		g.Go(func() error {
			if err := do(ctx, i); err != nil {
				return fmt.Errorf("shard %s: %w", s.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

type preparedTxn struct {
	Start    mongo.OpTime `bson:"startOpTime"`
	Prepared mongo.OpTime `bson:"lastWriteOpTime"`
}

// listPrepared reads a shard's prepared transactions from config.transactions (4.2 and later).
func listPrepared(ctx context.Context, s Shard) ([]preparedTxn, error) {
	return mongo.ReadAll[preparedTxn](ctx, "list prepared transactions")(
		s.Config("transactions").Find(ctx, bson.D{{Key: "state", Value: "prepared"}}))
}

// awaitDecisions waits until a shard has decided all transactions prepared up to a time.
func (c *Cluster) awaitDecisions(ctx context.Context, s Shard, at mongo.OpTime) error {
	reported := false
	for {
		all, err := listPrepared(ctx, s)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(t preparedTxn) bool { return at.Before(t.Prepared) })
		if c.opt.Waiting != nil && reported != (len(all) > 0) {
			reported = !reported
			c.opt.Waiting(describeWait(s.Name, all))
		}
		if len(all) == 0 {
			return nil
		}
		if err := pace.Pause(ctx, decisionPoll); err != nil {
			return err
		}
	}
}

// describeWait names the oldest undecided transaction, "" for none.
func describeWait(shard string, all []preparedTxn) string {
	if len(all) == 0 {
		return ""
	}
	oldest := slices.MinFunc(all, func(a, b preparedTxn) int { return a.Prepared.Compare(b.Prepared) })
	return fmt.Sprintf("the decision on a transaction that shard %s prepared at %s", shard, oldest.Prepared)
}

func (c *Cluster) Committed(ctx context.Context) (mongo.OpTime, error) {
	return c.Latest(ctx, func(ctx context.Context, s Shard) (mongo.OpTime, error) { return s.Committed(ctx) })
}

// Latest returns the latest of the shards' positions.
func (c *Cluster) Latest(ctx context.Context,
	of func(context.Context, Shard) (mongo.OpTime, error)) (mongo.OpTime, error) {
	all := make([]mongo.OpTime, len(c.Shards))
	err := c.Each(ctx, func(ctx context.Context, i int) (err error) {
		all[i], err = of(ctx, c.Shards[i])
		return err
	})
	at := slices.MaxFunc(all, mongo.OpTime.Compare)
	at.Term = -1 // of the cluster's time, not of a shard's history
	return at, err
}

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

type resumePoint struct {
	from       stream.Position // of the merged stream
	copies     []Copy
	knownUntil mongo.OpTime // time of the copies
}

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
