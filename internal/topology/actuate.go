package topology

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

const (
	// A burst of notes puts a new source ahead of a member when it connects: the server drops a source that is not.
	noteWriters = 3
	noteTime    = 100 * time.Millisecond
)

// SyncFrom makes a member fetch from a source, with its next batch and only if the source is then ahead of it.
func (o *Observer) SyncFrom(ctx context.Context, host, source string) error {
	err := o.on(ctx, host, o.timeout, func(ctx context.Context, c *driver.Client) error {
		return c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetSyncFrom", Value: source}}).Err()
	})
	if err != nil {
		return mongo.WithHint(fmt.Errorf("cannot make %s fetch from %s: %w", host, source, err),
			"the user needs the action replSetStateChange, which the role clusterManager has; the source has to be up and "+
				"hold data")
	}
	return nil
}

// Source asks one member for its source and state.
func (o *Observer) Source(ctx context.Context, host string) (source, state string, err error) {
	err = o.on(ctx, host, o.timeout, func(ctx context.Context, c *driver.Client) error {
		s, err := mongo.ReadSetStatus(ctx, c)
		if err != nil {
			return fmt.Errorf("cannot read the source of %s: %w", host, err)
		}
		source, state = s.Source(), s.Member(host).State
		return nil
	})
	return source, state, err
}

// Notes writes small notes into the primary's oplog for a tenth of a second.
func (o *Observer) Notes(ctx context.Context, primary string) error {
	end := time.Now().Add(noteTime)
	err := o.on(ctx, primary, o.timeout, func(ctx context.Context, c *driver.Client) error {
		var g errgroup.Group
		for range noteWriters {
			g.Go(func() (err error) {
				for time.Now().Before(end) && err == nil {
					err = c.Database("admin").RunCommand(ctx, bson.D{{Key: "appendOplogNote", Value: 1},
						{Key: "data", Value: bson.D{{Key: "millrace", Value: "topology"}}},
						{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}, {Key: "j", Value: false}}}}).Err()
				}
				return err
			})
		}
		return g.Wait()
	})
	if err != nil {
		return fmt.Errorf("cannot write notes into the oplog of %s: %w", primary, err)
	}
	return nil
}

const (
	appName = "millrace topology"
	// holdName begins the appName of a hold's connections, by which other holds find it. It ends with the process.
	holdName        = appName + " hold "
	otherHoldsEvery = 10 * time.Second
)

// ErrAnotherHold reports that another process keeps the set.
var ErrAnotherHold = errors.New("another hold keeps this set")

// Announce marks the observer's connections as those of a hold. It is called before anything else.
func (o *Observer) Announce() {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	const most = 60 // of the 128 bytes that servers take
	o.app = holdName + host[:min(len(host), most)] + "/" + strconv.Itoa(os.Getpid()) + " since " + time.Now().UTC().
		Format("2006-01-02T15:04:05.000000Z")
}

type connection struct {
	Name string `bson:"_id"`
}

// otherHolds returns the names of other holds that are connected to members. It fails when all members do.
func (o *Observer) otherHolds(ctx context.Context, set *Set) (others []string, err error) {
	var failed []error
	answered := false
	for _, m := range set.Members {
		if !m.Asked || m.Arbiter {
			continue
		}
		var found []connection
		err := o.on(ctx, m.Host, o.timeout, func(ctx context.Context, c *driver.Client) (err error) {
			found, err = mongo.ReadAll[connection](ctx, "list the connections of %s", m.Host)(
				c.Database("admin").Aggregate(ctx, bson.A{
					bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true}}}},
					bson.D{{Key: "$match", Value: bson.D{
						{Key: "appName", Value: bson.D{{Key: "$regex", Value: "^" + regexp.QuoteMeta(holdName)}}}}}},
					bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$appName"}}}},
				}))
			return err
		})
		if err != nil {
			failed = append(failed, err)
			continue
		}
		answered = true
		for _, c := range found {
			if c.Name != o.app && !slices.Contains(others, c.Name) {
				others = append(others, c.Name)
			}
		}
	}
	if !answered && len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	slices.Sort(others)
	return others, ctx.Err()
}

// CheckAlone returns ErrAnotherHold when another hold is connected to a member.
func (o *Observer) CheckAlone(ctx context.Context, set *Set) error {
	others, err := o.otherHolds(ctx, set)
	if err != nil {
		return mongo.NeedsRole(fmt.Errorf("cannot look for other holds of the set: %w", err),
			"the user needs the action inprog, which the role clusterMonitor has")
	}
	return anotherHold(set.Name, others)
}

// since orders holds by their names; one that was not announced comes last.
func since(name string) string {
	_, at, ok := strings.Cut(strings.TrimPrefix(name, holdName), " since ")
	if !ok {
		return "~"
	}
	return at + name
}

func anotherHold(set string, others []string) error {
	if len(others) == 0 {
		return nil
	}
	processes := strings.ReplaceAll(strings.Join(others, " and "), holdName, "")
	return mongo.WithHint(fmt.Errorf("%w: set %s is held by process %s", ErrAnotherHold, set, processes),
		"end that process first; if its machine has died, the servers notice within minutes that its connections are gone")
}

// Finding is one thing to know before chaining is switched.
type Finding struct {
	What  string `json:"what"`
	Stops bool   `json:"stops"` // the switch is refused
}

// CheckChaining returns what stands against switching chaining, and its effect.
func CheckChaining(set *Set, on bool, p Params) []Finding {
	var out []Finding
	add := func(stops bool, format string, args ...any) {
		out = append(out, Finding{fmt.Sprintf(format, args...), stops})
	}
	primary := set.Primary()
	if primary == nil {
		add(true, "there is no primary to reconfigure the set")
		return out
	}
	up, chained := 0, 0
	for i := range set.Members {
		m := &set.Members[i]
		if m.Votes > 0 && m.Healthy {
			up++
		}
		switch {
		case !m.Healthy:
			add(false, "%s is down", m.Host)
		case m.InitialSync:
			add(true, "%s is in its initial sync, which a change of source could start again", m.Host)
		case m.Source != "" && m.Source != primary.Host:
			chained++
			if !on && (m.Override == nil || !*m.Override) {
				add(false, "%s will leave %s for the primary", m.Host, m.Source)
			}
		}
		if !on && m.Override != nil && *m.Override {
			add(false, "%s goes on chaining: it was started with enableOverrideClusterChainingSetting", m.Host)
		}
	}
	if need := votersOf(set)/2 + 1; up < need {
		add(true, "%d voters are up, a new configuration needs %d", up, need)
	}
	now := Predict(set, set.Tree(), p)
	then := PredictAutomatic(set.chained(), p)
	if !on {
		then = Predict(set, DirectTree(set), p)
	}
	add(false, "members under the primary: %.0f now, %.1f expected; %d are chained now", now.Direct, then.Direct, chained)
	add(false, "predicted throughput: w:1 %+.0f %%, majority %+.0f %%", 100*relative(then.W1, now.W1),
		100*relative(then.Majority, now.Majority))
	return out
}

func votersOf(set *Set) int {
	n := 0
	for _, m := range set.Members {
		if m.Votes > 0 {
			n++
		}
	}
	return n
}

// SetChaining reconfigures the set and waits until the new configuration is observed. It fails when the
// configuration has changed since set was observed.
func (o *Observer) SetChaining(ctx context.Context, set *Set, on bool) error {
	primary := set.Primary()
	if primary == nil {
		return mongo.WithHint(fmt.Errorf("set %s has no primary", set.Name), "wait for the election")
	}
	if set.Chaining == on {
		return nil
	}
	c, err := o.client(primary.Host)
	if err != nil {
		return err
	}
	next, err := mongo.ReadSetConfig[changedConfig](ctx, c)
	if err != nil {
		return fmt.Errorf("cannot read the configuration of %s: %w", set.Name, err)
	}
	if next.Version != set.ConfigVersion {
		return mongo.WithHint(fmt.Errorf("the configuration of %s changed from version %d to %d meanwhile",
			set.Name, set.ConfigVersion, next.Version), "try again")
	}
	next.Version++
	next.Settings.Chaining = on
	err = c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetReconfig", Value: next}}).Err()
	if err != nil {
		return mongo.WithHint(fmt.Errorf("cannot reconfigure %s: %w", set.Name, err),
			"the user needs the role clusterManager; the set needs a majority of its voters")
	}
	err = pace.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		now, err := o.Observe(ctx)
		return err == nil && now.Chaining == on, nil
	})
	return mongo.Wrap(err, "the new configuration of %s was not observed", set.Name)
}

// changedConfig goes back to the server: Rest keeps what is not named here.
type changedConfig struct {
	Version  int64 `bson:"version"`
	Settings struct {
		Chaining bool   `bson:"chainingAllowed"`
		Rest     bson.M `bson:",inline"`
	} `bson:"settings"`
	Rest bson.M `bson:",inline"`
}
