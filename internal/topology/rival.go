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

	"github.com/millrace/millrace/internal/mongo"
)

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
	o.app = holdName + host[:min(len(host), most)] + "/" + strconv.Itoa(os.Getpid()) + " since " + time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
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
	c, err := o.client(host)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	cursor, err := c.Database("admin").Aggregate(ctx, bson.A{
		bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "appName", Value: bson.D{{Key: "$regex", Value: "^" + regexp.QuoteMeta(holdName)}}}}}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$appName"}}}},
	})
	var found []struct {
		Name string `bson:"_id"`
	}
	if err == nil {
		err = cursor.All(ctx, &found)
	}
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
		return mongo.NeedsRole(fmt.Errorf("find out whether another hold keeps the set: %w", err), "the user needs the action inprog, which the role clusterMonitor has")
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
