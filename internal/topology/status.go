package topology

import (
	"cmp"
	"context"
	"errors"
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
	status *status
	facts  facts
	cpu    float64 // seconds of processor time, -1 unknown
	err    error
}

// facts are what a server is asked once, for it cannot change while it runs.
type facts struct {
	uptime   int64 // seconds, when last asked
	started  time.Time
	override *bool
	version  string
}

// startNoise is how far off a start is that is computed from whole seconds.
const startNoise = 2 * time.Second

// of says that these are the facts of the server that has answered, which was
// not started again since.
func (f facts) of(uptime int64, started time.Time) bool {
	return !f.started.IsZero() && uptime >= f.uptime && started.Sub(f.started).Abs() <= startNoise
}

// question is what one member is to be asked. It may be asked beside others.
type question struct {
	client *driver.Client
	limit  time.Duration
	status *status // its answer, where it has been asked already
	known  facts
	cpu    bool // its processor time is wanted
}

// askHost asks a member by its address, but for what it has told already.
func (o *Observer) askHost(ctx context.Context, host string, told *discovery) *view {
	c, err := o.client(host)
	if err != nil {
		return &view{err: err}
	}
	q := question{client: c, limit: o.patience(host), known: o.facts[host], cpu: !o.lean}
	if told.host == host {
		q.status = told.status
	}
	return q.ask(ctx)
}

// ask asks for all that a member knows of itself and the others.
func (q question) ask(ctx context.Context) *view {
	ctx, cancel := context.WithTimeout(ctx, q.limit)
	defer cancel()
	s := q.status
	if s == nil {
		var err error
		if s, err = readStatus(ctx, q.client); err != nil {
			return &view{err: err}
		}
	}
	v := &view{status: s, cpu: -1, facts: q.known}
	var uptime int64
	for _, m := range s.Members {
		if m.Self {
			uptime = m.Uptime
		}
	}
	started := s.Date.Add(-time.Duration(uptime) * time.Second)
	fresh := !q.known.of(uptime, started)
	// What follows is good to know but not needed: rights may be missing.
	if fresh {
		v.facts = readFacts(ctx, q.client, started)
	}
	v.facts.uptime = uptime
	if fresh || q.cpu {
		version, cpu := readServer(ctx, q.client)
		v.facts.version, v.cpu = cmp.Or(version, v.facts.version), cpu
	}
	return v
}

// readServer asks for the version and the processor time used, -1 if unknown.
func readServer(ctx context.Context, c *driver.Client) (version string, cpu float64) {
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
	if err := c.Database("admin").RunCommand(ctx, sections).Decode(&server); err != nil {
		return "", -1
	}
	if us := server.Extra.User + server.Extra.System; us > 0 {
		return server.Version, float64(us) / 1e6
	}
	return server.Version, -1
}

// readFacts asks whether the member may chain although the set may not; what
// servers that do not know the parameter say is an answer, too.
func readFacts(ctx context.Context, c *driver.Client, started time.Time) facts {
	var parameter struct {
		Override *bool `bson:"enableOverrideClusterChainingSetting"`
	}
	err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "getParameter", Value: 1}, {Key: "enableOverrideClusterChainingSetting", Value: 1}}).Decode(&parameter)
	if answer := (driver.CommandError{}); err != nil && !errors.As(err, &answer) {
		return facts{} // to be asked again
	}
	return facts{started: started, override: parameter.Override}
}
