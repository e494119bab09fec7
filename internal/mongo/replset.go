package mongo

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
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

// Source returns the host that the member fetches the oplog from, "" for none.
func (s *SetStatus) Source() string { return cmp.Or(s.SyncHost, s.SyncTo) }

// Self returns the member that replied; like the methods below a zero one for none.
func (s *SetStatus) Self() MemberStatus { return s.find(func(m MemberStatus) bool { return m.Self }) }

// Primary returns the member that is the primary.
func (s *SetStatus) Primary() MemberStatus {
	return s.find(func(m MemberStatus) bool { return m.State == StatePrimary })
}

// Member returns the member of a host.
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
