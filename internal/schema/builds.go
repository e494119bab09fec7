package schema

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

const (
	// lookEvery is the time between two looks at a build, lookFor the longest one.
	lookEvery, lookFor = 2 * time.Second, 5 * time.Second
	// stalledAfter is when members of a stalled build are asked why, silentAfter when it is reported
	// without an answer.
	stalledAfter, silentAfter = 5 * time.Second, 30 * time.Second
	// askEvery is the time between two questions to members, warnEvery between two warnings.
	askEvery, warnEvery = 4 * time.Second, time.Minute
)

// Builds are the index builds of a job on its target. A build is ready when the members of the write
// concern have the index, not all that vote: a member that is down delays nothing. Safe for
// concurrent use.
type Builds struct {
	c      *mongo.Cluster
	quorum any // "majority" or a number of members
	log    *slog.Logger

	mu    sync.Mutex
	under []*build
}

// NewBuilds prepares builds that are ready when quorum members have the index: "majority" (also for
// nil) or a number.
func NewBuilds(c *mongo.Cluster, quorum any, log *slog.Logger) *Builds {
	return &Builds{c: c, quorum: cmp.Or(quorum, any("majority")), log: log}
}

// Command returns createIndexes with specs, documents of any kind.
func (b *Builds) Command(ns string, specs any) bson.D {
	_, coll := mongo.SplitNS(ns)
	cmd := bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: specs}}
	if b.c.TakesCommitQuorum() {
		cmd = append(cmd, bson.E{Key: "commitQuorum", Value: b.quorum})
	}
	return cmd
}

// Stalled is an index build of the target that makes no progress.
type Stalled struct {
	NS    string
	Names []string
	Since time.Time
	Why   string // in an operator's words
}

// build is a command that is not answered yet. Since is when seen changed last, Why is empty while it
// makes progress.
type build struct {
	Stalled           // guarded by Builds.mu
	seen    string    // the progress at the last look
	relaxed int       // looks for builds of other processes
	asked   time.Time // members, last
	warned  time.Time
}

// Stalled lists the builds that make no progress.
func (b *Builds) Stalled() (out []Stalled) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.under {
		if u.Why != "" {
			out = append(out, u.Stalled)
		}
	}
	return out
}

// UnderWay reports unanswered builds.
func (b *Builds) UnderWay() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.under) > 0
}

// Watch observes a build until done, which waits for the last look. It sets the quorum of another
// process's build of the same indexes, and reports a stalled build with the member that delays it.
func (b *Builds) Watch(ctx context.Context, ns string, names []string) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	u := &build{Stalled: Stalled{NS: ns, Names: names, Since: time.Now()}}
	b.mu.Lock()
	b.under = append(b.under, u)
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for pace.Pause(ctx, lookEvery) == nil {
			b.look(ctx, u)
		}
	}()
	return func() {
		cancel()
		<-ended
		b.mu.Lock()
		defer b.mu.Unlock()
		b.under = slices.DeleteFunc(b.under, func(other *build) bool { return other == u })
	}
}

func (b *Builds) look(ctx context.Context, u *build) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	if u.relaxed == 0 { // 4.4 applies a quorum when a member has built the index, not when it is set
		u.relaxed++
		b.relax(ctx, u)
	}
	seen, err := b.far(ctx, u.NS)
	if err == nil && seen != u.seen {
		if b.explain(u, "") {
			b.log.Info("an index build goes on", "ns", u.NS, "indexes", u.Names)
		}
		b.mu.Lock()
		u.seen, u.Since = seen, time.Now()
		b.mu.Unlock()
		return
	}
	still := time.Since(u.Since)
	if still < stalledAfter || time.Since(u.asked) < askEvery {
		return
	}
	u.asked = time.Now()
	if u.relaxed == 1 { // perhaps one has begun since
		if u.relaxed++; b.relax(ctx, u) {
			return
		}
	}
	why := b.reason(ctx, u)
	if why == "" && (err != nil || still < silentAfter) || ctx.Err() != nil {
		return
	}
	why = cmp.Or(why, "no member says why")
	b.explain(u, why)
	if time.Since(u.warned) < warnEvery {
		return
	}
	u.warned = time.Now()
	b.log.Warn("an index build on the target makes no progress; no change is applied meanwhile",
		"ns", u.NS, "indexes", u.Names, "for", still.Round(time.Second), "why", why,
		"hint", "start the member that is down, or remove it from the replica set")
}

func (b *Builds) explain(u *build, why string) (was bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, u.Why = u.Why != "", why
	return was
}

func (b *Builds) far(ctx context.Context, ns string) (string, error) {
	ops, err := b.operations(ctx, bson.D{{Key: "ns", Value: ns},
		{Key: "msg", Value: bson.D{{Key: "$regex", Value: "^Index Build"}}}})
	var out []string
	for _, op := range ops {
		out = append(out, strings.Join([]string{str(op, "shard"), op.Lookup("opid").String(), str(op, "msg"),
			op.Lookup("progress", "done").String()}, " "))
	}
	slices.Sort(out)
	return strings.Join(out, "; "), err
}

func (b *Builds) operations(ctx context.Context, match bson.D) ([]bson.Raw, error) {
	everyone := bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: false}}
	return mongo.ReadAll[bson.Raw](ctx, "ask the target for index builds under way")(
		primaryDB(b.c, "admin").Aggregate(ctx, bson.A{
			bson.D{{Key: "$currentOp", Value: everyone}}, bson.D{{Key: "$match", Value: match}},
		}))
}

func (b *Builds) relax(ctx context.Context, u *build) (changed bool) {
	if !b.c.TakesCommitQuorum() {
		return false
	}
	db, coll := mongo.SplitNS(u.NS)
	for _, names := range b.groups(ctx, u) {
		if has := entry(ctx, b.c, "$all", names); has != nil && sameQuorum(has.Lookup("commitQuorum"), b.quorum) {
			continue
		}
		_, err := b.c.Write(ctx, db, bson.D{{Key: "setIndexCommitQuorum", Value: coll}, {Key: "indexNames", Value: names},
			{Key: "commitQuorum", Value: b.quorum}})
		if err != nil {
			b.log.Debug("the quorum of an index build stays", "ns", u.NS, "indexes", names, "error", err)
			continue
		}
		b.log.Info("an index build under way waits for fewer members now",
			"ns", u.NS, "indexes", names, "commitQuorum", b.quorum)
		changed = true
	}
	return changed
}

// groups are the names of each build that has one of the indexes: the server identifies a build by
// all its names.
func (b *Builds) groups(ctx context.Context, u *build) (out [][]string) {
	specs, err := listSpecs(ctx, b.c, u.NS, withBuilds())
	if err != nil { // it cannot describe them: perhaps an earlier run began the same build
		return [][]string{u.Names}
	}
	byID := map[string][]string{}
	var order []string
	for _, spec := range specs {
		id := spec.Lookup("buildUUID").String()
		if id == "" {
			continue
		}
		if byID[id] == nil {
			order = append(order, id)
		}
		byID[id] = append(byID[id], str(spec, "spec", "name"))
	}
	for _, id := range order {
		if slices.ContainsFunc(byID[id], func(name string) bool { return slices.Contains(u.Names, name) }) {
			out = append(out, byID[id])
		}
	}
	return out
}

// entry returns a replica set's record of a build with all ($all) or one ($in) of some indexes, or
// nil.
func entry(ctx context.Context, set *mongo.Cluster, which string, names []string) bson.Raw {
	raw, err := set.Command(ctx, "config", bson.D{{Key: "find", Value: "system.indexBuilds"}, {Key: "limit", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "indexNames", Value: bson.D{{Key: which, Value: names}}}}}})
	if err != nil {
		return nil
	}
	return sub(raw, "cursor", "firstBatch", "0")
}

func sameQuorum(have bson.RawValue, want any) bool {
	if text, ok := have.StringValueOK(); ok {
		return text == want
	}
	n, ok := have.AsInt64OK()
	return ok && fmt.Sprint(n) == fmt.Sprint(want)
}

func (b *Builds) reason(ctx context.Context, u *build) string {
	var all []string
	err := b.c.EachSet(ctx, func(name string, set *mongo.Cluster) error {
		for _, why := range absent(ctx, set, entry(ctx, set, "$in", u.Names)) {
			if name != "" {
				why += " of shard " + name
			}
			all = append(all, why)
		}
		return nil
	})
	if err != nil {
		b.log.Debug("the members of the target cannot be asked", "error", err)
	}
	return strings.Join(all, ", ")
}

func absent(ctx context.Context, set *mongo.Cluster, entry bson.Raw) (down []string) {
	status, err := mongo.ReadSetStatus(ctx, set.Client)
	members := set.Info.Hosts // what every user may know
	if err == nil {
		members = nil
	}
	for _, m := range status.Members {
		switch {
		case m.Health == 0:
			down = append(down, "member "+m.Name+" is down")
		case m.State == mongo.StatePrimary || m.State == mongo.StateSecondary:
			members = append(members, m.Name)
		case m.State != mongo.StateArbiter:
			down = append(down, "member "+m.Name+" is in state "+m.State)
		}
	}
	if len(down) > 0 || entry == nil {
		return down
	}
	ready := texts(entry, "commitReadyMembers")
	for _, name := range members {
		if !slices.Contains(ready, name) {
			down = append(down, "member "+name+" has not built it")
		}
	}
	return down
}

// BuildProgress is the progress of an index build, in documents of its stage.
type BuildProgress struct {
	NS          string
	Done, Total int64
}

// Progress returns the index builds of the target's primary.
func (b *Builds) Progress(ctx context.Context) ([]BuildProgress, error) {
	ops, err := b.operations(ctx, bson.D{
		{Key: "command.createIndexes", Value: bson.D{{Key: "$exists", Value: true}}},
		{Key: "progress.total", Value: bson.D{{Key: "$gt", Value: 0}}},
	})
	if err != nil {
		return nil, mongo.NeedsRole(err, "the user needs the inprog privilege on the target (role clusterMonitor has it)")
	}
	var out []BuildProgress
	for _, op := range ops {
		p := BuildProgress{NS: str(op, "ns")}
		if coll := str(op, "command", "createIndexes"); coll != "" && str(op, "command", "$db") != "" {
			p.NS = str(op, "command", "$db") + "." + coll
		}
		p.Done, _ = op.Lookup("progress", "done").AsInt64OK()
		p.Total, _ = op.Lookup("progress", "total").AsInt64OK()
		out = append(out, p)
	}
	return out, nil
}
