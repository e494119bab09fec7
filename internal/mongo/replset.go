package mongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/pace"
)

// SetStatus is what is used of a member's reply to replSetGetStatus.
type SetStatus struct {
	Date     time.Time `bson:"date"`
	Term     int64     `bson:"term"`
	SyncHost string    `bson:"syncSourceHost"`
	SyncTo   string    `bson:"syncingTo"` // its name before 4.4
	OpTimes  struct {
		Committed OpTime    `bson:"lastCommittedOpTime"`
		Applied   OpTime    `bson:"appliedOpTime"`
		Durable   OpTime    `bson:"durableOpTime"`
		AppliedAt time.Time `bson:"lastAppliedWallTime"`
		DurableAt time.Time `bson:"lastDurableWallTime"`
	} `bson:"optimes"`
	Members []MemberStatus `bson:"members"`
}

// MemberStatus is what a member knows of one member of its set.
type MemberStatus struct {
	Self        bool      `bson:"self"` // it is the member that replied
	Name        string    `bson:"name"`
	State       string    `bson:"stateStr"`
	Health      float64   `bson:"health"` // 0 is unreachable
	Uptime      int64     `bson:"uptime"` // seconds
	Applied     OpTime    `bson:"optime"`
	AppliedDate time.Time `bson:"optimeDate"`
	Durable     OpTime    `bson:"optimeDurable"`
	AppliedAt   time.Time `bson:"lastAppliedWallTime"`
	DurableAt   time.Time `bson:"lastDurableWallTime"`
	Heartbeat   time.Time `bson:"lastHeartbeat"`
	Ping        float64   `bson:"pingMs"`
	SyncHost    string    `bson:"syncSourceHost"`
	SyncTo      string    `bson:"syncingTo"`
	Elected     time.Time `bson:"electionDate"`
}

// The states of a member that millrace acts upon.
const (
	StatePrimary   = "PRIMARY"
	StateSecondary = "SECONDARY"
	StateArbiter   = "ARBITER"
)

// ReadSetStatus asks a member for the status of its set.
func ReadSetStatus(ctx context.Context, c *driver.Client) (s SetStatus, err error) {
	err = c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}}).Decode(&s)
	return s, err
}

func (s *SetStatus) Source() string { return cmp.Or(s.SyncHost, s.SyncTo) }

// Self returns the member that replied; like the methods below a zero one for none.
func (s *SetStatus) Self() MemberStatus { return s.find(func(m MemberStatus) bool { return m.Self }) }

func (s *SetStatus) Primary() MemberStatus {
	return s.find(func(m MemberStatus) bool { return m.State == StatePrimary })
}

func (s *SetStatus) Member(host string) MemberStatus {
	return s.find(func(m MemberStatus) bool { return m.Name == host })
}

func (s *SetStatus) find(match func(MemberStatus) bool) (m MemberStatus) {
	if i := slices.IndexFunc(s.Members, match); i >= 0 {
		m = s.Members[i]
	}
	return m
}

// SetConfig is what is used of a replica set's configuration. It cannot go back to the server.
type SetConfig struct {
	ID       string         `bson:"_id"`
	Version  int64          `bson:"version"`
	Members  []MemberConfig `bson:"members"`
	Settings struct {
		Chaining     *bool         `bson:"chainingAllowed"`
		ReplicaSetID bson.ObjectID `bson:"replicaSetId"`
	} `bson:"settings"`
}

// MemberConfig is a member in a SetConfig.
type MemberConfig struct {
	ID         int               `bson:"_id"`
	Host       string            `bson:"host"`
	Arbiter    bool              `bson:"arbiterOnly"`
	Hidden     bool              `bson:"hidden"`
	BuildIndex *bool             `bson:"buildIndexes"`
	Priority   *float64          `bson:"priority"`
	Votes      *int              `bson:"votes"`
	Tags       map[string]string `bson:"tags"`
	Delay      int64             `bson:"secondaryDelaySecs"`
	SlaveDelay int64             `bson:"slaveDelay"` // its name before 5.0
}

// DelaySeconds returns how far the member is delayed.
func (m MemberConfig) DelaySeconds() int64 { return max(m.Delay, m.SlaveDelay) }

// ReadSetConfig asks a member for the configuration of its set, as a SetConfig or as a type that can go back.
func ReadSetConfig[C any](ctx context.Context, c *driver.Client) (C, error) {
	var reply struct {
		Config C `bson:"config"`
	}
	err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply)
	return reply.Config, err
}

// OpTime is a position in an oplog: an entry's timestamp and its primary's election term. Timestamps order the
// entries of one majority-committed history; the term distinguishes histories.
type OpTime struct {
	TS   bson.Timestamp `bson:"ts"`
	Term int64          `bson:"t"`
}

func (o OpTime) IsZero() bool { return o.TS.IsZero() }

// Compare orders positions by timestamp.
func (o OpTime) Compare(p OpTime) int { return o.TS.Compare(p.TS) }

func (o OpTime) Before(p OpTime) bool { return o.Compare(p) < 0 }

// First is the least position of an entry at or after o: a second's entries are counted from 1.
func (o OpTime) First() OpTime {
	if o.TS.I == 0 {
		o.TS.I = 1
	}
	return o
}

// Previous is the last position before o, in no known term.
func (o OpTime) Previous() OpTime {
	at := (uint64(o.TS.T)<<32 | uint64(o.TS.I)) - 1
	return OpTime{TS: bson.Timestamp{T: uint32(at >> 32), I: uint32(at)}, Term: -1}
}

// Time is the wall-clock second of the position.
func (o OpTime) Time() time.Time { return time.Unix(int64(o.TS.T), 0).UTC() }

// String formats as "seconds:increment", the form ParseOpTime reads.
func (o OpTime) String() string {
	if o.IsZero() {
		return "none"
	}
	return fmt.Sprintf("%d:%d", o.TS.T, o.TS.I)
}

func MinOpTime(a, b OpTime) OpTime { return slices.MinFunc([]OpTime{a, b}, OpTime.Compare) }

func MaxOpTime(a, b OpTime) OpTime { return slices.MaxFunc([]OpTime{a, b}, OpTime.Compare) }

// ParseOpTime reads "seconds:increment", or a time in RFC 3339 as the first position of that second.
func ParseOpTime(s string) (OpTime, error) {
	if sec, inc, ok := strings.Cut(s, ":"); ok && !strings.Contains(s, "-") {
		t, err1 := strconv.ParseUint(sec, 10, 32)
		i, err2 := strconv.ParseUint(inc, 10, 32)
		if err1 == nil && err2 == nil && t+i > 0 {
			return OpTime{TS: bson.Timestamp{T: uint32(t), I: uint32(i)}, Term: -1}, nil
		}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return OpTime{}, fmt.Errorf("position %q: want seconds:increment (1700000000:1) or a time (2026-01-02T15:04:05Z)", s)
	}
	if t.Unix() <= 0 || t.Unix() > math.MaxUint32 {
		return OpTime{}, fmt.Errorf("position %q: no oplog holds that time", s)
	}
	return OpTime{TS: bson.Timestamp{T: uint32(t.Unix())}, Term: -1}, nil
}

// Oplog is the collection of a replica set's oplog.
func (c *Cluster) Oplog() *driver.Collection {
	return c.Client.Database("local").Collection("oplog.rs")
}

// EachEntry calls fn for the matching entries of the primary's oplog, the oldest first, and reuses the bytes. It
// reads with majority concern after a time: a newly elected primary may not know yet that entries are committed.
func (c *Cluster) EachEntry(ctx context.Context, filter bson.D, at bson.Timestamp, fn func(bson.Raw) error) error {
	cur, err := c.Client.Database("local").RunCommandCursor(ctx, bson.D{
		{Key: "find", Value: "oplog.rs"}, {Key: "filter", Value: filter},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: at}}},
	}, options.RunCmd().SetReadPreference(readpref.Primary()))
	if err != nil {
		return err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	for cur.Next(ctx) {
		if err := fn(cur.Current); err != nil {
			return err
		}
	}
	return cur.Err()
}

// OldestEntry returns the position of the oldest entry. begins says that it is the first entry of the replica set
// (seen on 4.2 to 6.0), so that no entry was lost.
func (c *Cluster) OldestEntry(ctx context.Context) (at OpTime, begins bool, err error) {
	fields := bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}, {Key: "op", Value: 1}, {Key: "o.msg", Value: 1}}
	raw, err := c.Oplog().FindOne(ctx, bson.D{},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: 1}}).SetProjection(fields)).Raw()
	if err == nil {
		err = bson.Unmarshal(raw, &at)
	}
	if err != nil {
		return at, false, Wrap(err, "read the oldest oplog entry of %s", c.Address())
	}
	op, _ := raw.Lookup("op").StringValueOK()
	msg, _ := raw.Lookup("o", "msg").StringValueOK()
	return at, op == "n" && msg == "initiating set", nil
}

// Reached waits until the primary knows that a position is majority-committed, and returns its positions then.
func (c *Cluster) Reached(ctx context.Context, at OpTime) (Positions, error) {
	h, err := c.poll(ctx, func(h *hello) bool { return !h.LastWrite.Majority.Before(at) })
	if err != nil {
		return Positions{}, fmt.Errorf("wait until %v is majority-committed on %s: %w", at, c.Address(), err)
	}
	return h.LastWrite, nil
}

// Committed waits until every write acknowledged up to now is majority-committed, and returns the position of the
// last. An election meanwhile is an error of ClassRetry: they may be rolled back.
func (c *Cluster) Committed(ctx context.Context) (at OpTime, err error) {
	h, err := c.poll(ctx, func(h *hello) bool {
		if at.IsZero() {
			at = h.LastWrite.Last
		}
		return h.LastWrite.Last.Term != at.Term || !h.LastWrite.Majority.Before(at)
	})
	if err == nil {
		err = c.elected(at.Term, h.LastWrite.Last.Term)
	}
	if err != nil {
		return at, fmt.Errorf("wait until %v is majority-committed on %s: %w", at, c.Address(), err)
	}
	return at, nil
}

// CommittedSeen is Committed for all that the primary has returned, acknowledged or not.
func (c *Cluster) CommittedSeen(ctx context.Context) (OpTime, error) {
	// The primary must report what it has returned as its newest write. A change shows an instant earlier, but
	// never before its time was assigned. A write that fails, as by a duplicate key, leaves a time without entry.
	const instant = time.Second
	var given bson.Timestamp
	began := time.Now()
	_, err := c.poll(ctx, func(h *hello) bool {
		if given.IsZero() {
			given = h.ClusterTime.ClusterTime
		}
		return !h.LastWrite.Last.TS.Before(given) || time.Since(began) >= instant
	})
	if err != nil {
		return OpTime{}, fmt.Errorf("wait until %s counts its newest write: %w", c.Address(), err)
	}
	return c.Committed(ctx)
}

// ClusterTime is the newest time that the primary knows. Nothing that it has returned is later.
func (c *Cluster) ClusterTime(ctx context.Context) (OpTime, error) {
	h, err := c.hello(ctx)
	if err != nil {
		return OpTime{}, fmt.Errorf("time of %s: %w", c.Address(), err)
	}
	return OpTime{TS: h.ClusterTime.ClusterTime, Term: h.LastWrite.Last.Term}, nil
}

func (c *Cluster) poll(ctx context.Context, enough func(*hello) bool) (h hello, err error) {
	err = pace.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		h, err = c.hello(ctx)
		return err == nil && enough(&h), err
	})
	return h, err
}

func (c *Cluster) elected(before, now int64) error {
	if before == now {
		return nil
	}
	return Retry(fmt.Sprintf("%s has elected another primary (term %d, before %d)", c.Address(), now, before), nil, "")
}

// Seen runs look, which reads from the primary by c.Client, and waits until all that it can have seen is
// majority-committed in the same term. An election meanwhile is an error of ClassRetry. Without a replica set,
// Seen only runs look.
func (c *Cluster) Seen(ctx context.Context, look func() error) error {
	if c.Info.Kind != KindReplicaSet {
		return look()
	}
	before, err := c.Positions(ctx)
	if err != nil {
		return err
	}
	// The same client reads both, so that no older primary replies.
	if err := look(); err != nil {
		return err
	}
	at, err := c.CommittedSeen(ctx)
	return cmp.Or(err, c.elected(before.Last.Term, at.Term))
}

// Vanished reports whether the collection with a UUID is gone from a database for good. It waits until a drop can
// no longer be rolled back, as long as that takes.
func (c *Cluster) Vanished(ctx context.Context, db string, uuid bson.Binary) (bool, error) {
	there := errors.New("it is there")
	err := c.Seen(ctx, func() error {
		_, err := c.Command(ctx, db, bson.D{{Key: "find", Value: uuid}, {Key: "limit", Value: 1},
			{Key: "singleBatch", Value: true},
			{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}})
		if IsCode(err, CodeNamespaceNotFound) {
			return nil
		}
		return cmp.Or(err, there)
	})
	if errors.Is(err, there) {
		return false, nil
	}
	return err == nil, err
}
