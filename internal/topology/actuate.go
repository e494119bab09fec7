package topology

import (
	"cmp"
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
	// noteWriters and noteTime make a burst of notes dense enough that a new
	// source is ahead of a member at the moment when it connects: the server
	// drops a source that has nothing newer, which on an idle set none has.
	noteWriters = 3
	noteTime    = 100 * time.Millisecond
)

// SyncFrom tells a member to fetch from a source. It takes effect with the
// member's next batch, and only if the source is then ahead of the member.
func (o *Observer) SyncFrom(ctx context.Context, host, source string) error {
	err := o.on(ctx, host, func(ctx context.Context, c *driver.Client) error {
		return c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetSyncFrom", Value: source}}).Err()
	})
	if err != nil {
		return mongo.WithHint(fmt.Errorf("make %s fetch from %s: %w", host, source, err),
			"the user needs the action replSetStateChange, which the role clusterManager has; the source has to be up and "+
				"hold data")
	}
	return nil
}

// Source asks a member alone for its source and state.
func (o *Observer) Source(ctx context.Context, host string) (source, state string, err error) {
	err = o.on(ctx, host, func(ctx context.Context, c *driver.Client) error {
		s, err := readStatus(ctx, c)
		if err != nil {
			return fmt.Errorf("ask %s for its source: %w", host, err)
		}
		if self := s.of(host); self != nil {
			state = self.State
		}
		source = cmp.Or(s.SyncHost, s.SyncTo)
		return nil
	})
	return source, state, err
}

// Notes writes small notes into the primary's oplog for a tenth of a second.
func (o *Observer) Notes(ctx context.Context, primary string) error {
	end := time.Now().Add(noteTime)
	err := o.on(ctx, primary, func(ctx context.Context, c *driver.Client) error {
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
		return fmt.Errorf("write notes into the oplog of %s: %w", primary, err)
	}
	return nil
}

const (
	appName = "millrace topology"
	// holdName begins the name under which the connections of a hold are known
	// to the servers: that they are open says that the hold is there. Nothing is
	// stored, so nothing is left when the process has died.
	holdName = appName + " hold "
	// rivalsEvery is how often a hold looks whether it is alone.
	rivalsEvery = 10 * time.Second
)

// ErrHeld says that another hold keeps the set.
var ErrHeld = errors.New("another hold keeps this set")

// Announce makes the observer's connections be seen as those of a hold. It is
// to be called before anything else.
func (o *Observer) Announce() {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	const most = 60 // of the 128 bytes that servers take
	o.app = holdName + host[:min(len(host), most)] + "/" + strconv.Itoa(os.Getpid()) + " since " + time.Now().UTC().
		Format("2006-01-02T15:04:05.000000Z")
}

// Rivals names the other holds that are connected to any of these members. A
// member that cannot be asked is passed over; it fails when none could be.
func (o *Observer) Rivals(ctx context.Context, hosts []string) ([]string, error) {
	var rivals []string
	var failed []error
	for _, host := range hosts {
		names, err := o.holdsAt(ctx, host)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, n := range names {
			if n != o.app && !slices.Contains(rivals, n) {
				rivals = append(rivals, n)
			}
		}
	}
	if len(failed) > 0 && len(failed) == len(hosts) {
		return nil, errors.Join(failed...)
	}
	slices.Sort(rivals)
	return rivals, ctx.Err()
}

// holdsAt are the names of holds with connections to a member.
func (o *Observer) holdsAt(ctx context.Context, host string) ([]string, error) {
	var found []struct {
		Name string `bson:"_id"`
	}
	err := o.on(ctx, host, func(ctx context.Context, c *driver.Client) error {
		cursor, err := c.Database("admin").Aggregate(ctx, bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true}}}},
			bson.D{{Key: "$match", Value: bson.D{
				{Key: "appName", Value: bson.D{{Key: "$regex", Value: "^" + regexp.QuoteMeta(holdName)}}}}}},
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$appName"}}}},
		})
		if err != nil {
			return err
		}
		return cursor.All(ctx, &found)
	})
	if err != nil {
		return nil, fmt.Errorf("list the connections of %s: %w", host, err)
	}
	var names []string
	for _, f := range found {
		names = append(names, f.Name)
	}
	return names, nil
}

// CheckAlone fails with ErrHeld when another hold is connected to a member.
func (o *Observer) CheckAlone(ctx context.Context, set *Set) error {
	rivals, err := o.Rivals(ctx, reachable(set))
	if err != nil {
		return mongo.NeedsRole(fmt.Errorf("find out whether another hold keeps the set: %w", err),
			"the user needs the action inprog, which the role clusterMonitor has")
	}
	return held(set.Name, rivals)
}

func reachable(set *Set) (hosts []string) {
	for _, m := range set.Members {
		if m.Asked && !m.Arbiter {
			hosts = append(hosts, m.Host)
		}
	}
	return hosts
}

// Name is that of the observer's connections.
func (o *Observer) Name() string { return o.app }

// since is the part of a hold's name that orders holds; one that was not
// announced comes last.
func since(name string) string {
	_, at, ok := strings.Cut(strings.TrimPrefix(name, holdName), " since ")
	if !ok {
		return "~"
	}
	return at + name
}

// held is the error for rivals, nil for none.
func held(set string, rivals []string) error {
	if len(rivals) == 0 {
		return nil
	}
	var who []string
	for _, r := range rivals {
		who = append(who, strings.TrimPrefix(r, holdName))
	}
	return mongo.WithHint(fmt.Errorf("%w: set %s is held by process %s", ErrHeld, set, strings.Join(who, " and ")),
		"end that process first; if its machine has died, the servers notice within minutes that its connections are gone")
}

// Finding is one thing to know before chaining is switched.
type Finding struct {
	What string `json:"what"`
	// Stops says that the switch is refused.
	Stops bool `json:"stops"`
}

// CheckChaining says what speaks against switching chaining, and what it will do.
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

// SetChaining reconfigures the set and waits until a majority has the new
// configuration. It does nothing when the setting is right already, and fails
// when the configuration has changed since set was observed.
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
	var reply struct {
		Config changedConfig `bson:"config"`
	}
	admin := c.Database("admin")
	if err := admin.RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply); err != nil {
		return fmt.Errorf("read the configuration of %s: %w", set.Name, err)
	}
	next := &reply.Config
	if next.Version != set.ConfigVersion {
		return mongo.WithHint(fmt.Errorf("the configuration of %s changed from version %d to %d meanwhile",
			set.Name, set.ConfigVersion, next.Version), "try again")
	}
	next.Version++
	next.Settings.Chaining = on
	err = admin.RunCommand(ctx, bson.D{{Key: "replSetReconfig", Value: next}}).Err()
	if err != nil {
		return mongo.WithHint(fmt.Errorf("reconfigure %s: %w", set.Name, err),
			"the user needs the role clusterManager; the set needs a majority of its voters")
	}
	return o.waitChaining(ctx, on)
}

// waitChaining waits until the set is seen with the setting.
func (o *Observer) waitChaining(ctx context.Context, on bool) error {
	for {
		set, err := o.Observe(ctx)
		if err == nil && set.Chaining == on {
			return nil
		}
		if perr := pace.Pause(ctx, 100*time.Millisecond); perr != nil {
			return fmt.Errorf("the new configuration is not seen: %w", perr)
		}
	}
}

// changedConfig is a set's configuration to be changed. All that is not named here stays
// as it is.
type changedConfig struct {
	Version  int64 `bson:"version"`
	Settings struct {
		Chaining bool   `bson:"chainingAllowed"`
		Rest     bson.M `bson:",inline"`
	} `bson:"settings"`
	Rest bson.M `bson:",inline"`
}
