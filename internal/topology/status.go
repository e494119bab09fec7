package topology

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
)

// setConfig is the reply of replSetGetConfig, as far as it matters.
type setConfig struct {
	ID       string         `bson:"_id"`
	Version  int64          `bson:"version"`
	Members  []memberConfig `bson:"members"`
	Settings struct {
		Chaining     *bool         `bson:"chainingAllowed"`
		ReplicaSetID bson.ObjectID `bson:"replicaSetId"`
	} `bson:"settings"`
}

type memberConfig struct {
	ID          int               `bson:"_id"`
	Host        string            `bson:"host"`
	Arbiter     bool              `bson:"arbiterOnly"`
	Hidden      bool              `bson:"hidden"`
	BuildIndex  *bool             `bson:"buildIndexes"`
	Priority    *float64          `bson:"priority"`
	Votes       *int              `bson:"votes"`
	Tags        map[string]string `bson:"tags"`
	Delay       int64             `bson:"secondaryDelaySecs"`
	DelayBefore int64             `bson:"slaveDelay"` // its name before 5.0
}

// status is the reply of replSetGetStatus, as far as it matters.
type status struct {
	Date     time.Time `bson:"date"`
	Term     int64     `bson:"term"`
	State    int       `bson:"myState"`
	SyncHost string    `bson:"syncSourceHost"`
	SyncTo   string    `bson:"syncingTo"` // its name before 4.4
	OpTimes  struct {
		Applied   mongo.OpTime `bson:"appliedOpTime"`
		Durable   mongo.OpTime `bson:"durableOpTime"`
		AppliedAt time.Time    `bson:"lastAppliedWallTime"`
		DurableAt time.Time    `bson:"lastDurableWallTime"`
	} `bson:"optimes"`
	Members     []memberStatus `bson:"members"`
	InitialSync bson.Raw       `bson:"initialSyncStatus"`
}

type memberStatus struct {
	Name      string       `bson:"name"`
	Health    float64      `bson:"health"`
	State     string       `bson:"stateStr"`
	Uptime    int64        `bson:"uptime"` // seconds
	Applied   mongo.OpTime `bson:"optime"`
	Durable   mongo.OpTime `bson:"optimeDurable"`
	AppliedAt time.Time    `bson:"lastAppliedWallTime"`
	DurableAt time.Time    `bson:"lastDurableWallTime"`
	Heartbeat time.Time    `bson:"lastHeartbeat"`
	Ping      float64      `bson:"pingMs"`
	SyncHost  string       `bson:"syncSourceHost"`
	SyncTo    string       `bson:"syncingTo"`
	Elected   time.Time    `bson:"electionDate"`
	Self      bool         `bson:"self"`
}

func readConfig(ctx context.Context, c *driver.Client) (*setConfig, error) {
	var reply struct {
		Config setConfig `bson:"config"`
	}
	err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply)
	return &reply.Config, err
}

func readStatus(ctx context.Context, c *driver.Client) (*status, error) {
	var s status
	err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}}).Decode(&s)
	return &s, err
}

// primary is the address of the member that is taken for the primary, "" for none.
func (s *status) primary() string {
	for _, m := range s.Members {
		if m.State == StatePrimary {
			return m.Name
		}
	}
	return ""
}

// of returns what the status says of a member.
func (s *status) of(host string) *memberStatus {
	for i := range s.Members {
		if s.Members[i].Name == host {
			return &s.Members[i]
		}
	}
	return nil
}

// view is one member's own answer.
type view struct {
	status   *status
	override *bool
	version  string
	cpu      float64 // seconds of processor time, -1 unknown
	err      error
}

// askHost asks a member by its address.
func (o *Observer) askHost(ctx context.Context, host string) *view {
	c, err := o.client(host)
	if err != nil {
		return &view{err: err}
	}
	return o.ask(ctx, c, o.patience(host))
}

// ask asks a member for all that it knows of itself and the others.
func (o *Observer) ask(ctx context.Context, c *driver.Client, limit time.Duration) *view {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := readStatus(ctx, c)
	if err != nil {
		return &view{err: err}
	}
	v := &view{status: s, cpu: -1}
	admin := c.Database("admin")
	// What follows is good to know but not needed: rights may be missing.
	var server struct {
		Version string `bson:"version"`
		Extra   struct {
			User   int64 `bson:"user_time_us"`
			System int64 `bson:"system_time_us"`
		} `bson:"extra_info"`
	}
	sections := bson.D{{Key: "serverStatus", Value: 1}}
	for _, name := range []string{"asserts", "connections", "locks", "metrics", "network", "opcounters", "opLatencies", "wiredTiger", "repl", "mirroredReads"} {
		sections = append(sections, bson.E{Key: name, Value: 0})
	}
	if err := admin.RunCommand(ctx, sections).Decode(&server); err == nil {
		v.version = server.Version
		if us := server.Extra.User + server.Extra.System; us > 0 {
			v.cpu = float64(us) / 1e6
		}
	}
	var parameter struct {
		Override *bool `bson:"enableOverrideClusterChainingSetting"`
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "getParameter", Value: 1}, {Key: "enableOverrideClusterChainingSetting", Value: 1}}).Decode(&parameter); err == nil {
		v.override = parameter.Override
	}
	return v
}
