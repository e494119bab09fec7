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
	// lookEvery is the time between two looks at a build that is not answered yet, and
	// lookFor how long one may take.
	lookEvery, lookFor = 2 * time.Second, 5 * time.Second
	// stalledAfter is how long a build may stand still before members are asked why, and
	// silentAfter how long before it is reported though none of them is the cause.
	stalledAfter, silentAfter = 5 * time.Second, 30 * time.Second
	// askEvery is the time between two questions to the members, warnEvery that between two
	// warnings of the same build.
	askEvery, warnEvery = 4 * time.Second, time.Minute
)

// Builds are the index builds that a job requests on its target. A build is ready when as many
// members have built the index as the write concern requires, in place of all that vote. So one
// member that is down does not delay it. Safe for concurrent use.
type Builds struct {
	c      *mongo.Cluster
	quorum any // "majority" or a number of members
	log    *slog.Logger

	mu    sync.Mutex
	under []*build
}

// NewBuilds prepares builds on a target that are ready when quorum members have the
// index: "majority", also for nil, or a number. It sends nothing yet.
func NewBuilds(c *mongo.Cluster, quorum any, log *slog.Logger) *Builds {
	return &Builds{c: c, quorum: cmp.Or(quorum, any("majority")), log: log}
}

// Command is createIndexes. specs are documents of any kind.
func (b *Builds) Command(ns string, specs any) bson.D {
	_, coll := mongo.SplitNS(ns)
	cmd := bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: specs}}
	if b.c.TakesCommitQuorum() {
		cmd = append(cmd, bson.E{Key: "commitQuorum", Value: b.quorum})
	}
	return cmd
}

// build is a command that is not answered yet.
type build struct {
	ns      string
	names   []string
	seen    string    // how far the target was when it was looked at last
	moved   time.Time // when that changed last
	relaxed int       // how often builds of other processes were looked for
	asked   time.Time // members, last
	warned  time.Time
	stalled string // why it stands still; guarded by Builds.mu
}

// Stalled is an index build of the target that makes no progress.
type Stalled struct {
	NS    string
	Names []string
	Since time.Time
	Why   string // in an operator's words
}

// Stalled lists the builds that make no progress.
func (b *Builds) Stalled() (out []Stalled) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.under {
		if u.stalled != "" {
			out = append(out, Stalled{NS: u.ns, Names: u.names, Since: u.moved, Why: u.stalled})
		}
	}
	return out
}

// UnderWay reports builds that are not answered yet.
func (b *Builds) UnderWay() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.under) > 0
}

// Watch looks at a build until done is called, which waits for the last look. If another
// process builds the same indexes, Watch sets the quorum of its build. It reports a build that
// stands still, with the member that it waits for.
func (b *Builds) Watch(ctx context.Context, ns string, names []string) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	u := &build{ns: ns, names: names, moved: time.Now()}
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

// look finds whether a build moves on. What cannot be asked now is asked the next time.
func (b *Builds) look(ctx context.Context, u *build) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	if u.relaxed == 0 { // 4.4 looks at the quorum when a member has built the index, and not when it is set
		u.relaxed++
		b.relax(ctx, u)
	}
	seen, err := b.far(ctx, u.ns)
	if err == nil && seen != u.seen {
		if b.explain(u, "") {
			b.log.Info("an index build goes on", "ns", u.ns, "indexes", u.names)
		}
		b.mu.Lock()
		u.seen, u.moved = seen, time.Now()
		b.mu.Unlock()
		return
	}
	still := time.Since(u.moved)
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
		"ns", u.ns, "indexes", u.names, "for", still.Round(time.Second), "why", why,
		"hint", "start the member that is down, or remove it from the replica set")
}

// explain notes why a build stands still, "" if it does not, and reports whether there was
// another reason noted.
func (b *Builds) explain(u *build, why string) (was bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, u.stalled = u.stalled != "", why
	return was
}

// far tells how far builds of a collection are, in the server's words; those of a sharded
// cluster by shard.
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

// operations are those under way on the target that match.
func (b *Builds) operations(ctx context.Context, match bson.D) ([]bson.Raw, error) {
	everyone := bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: false}}
	return mongo.ReadAll[bson.Raw](ctx, "ask the target for index builds under way")(
		primaryDB(b.c, "admin").Aggregate(ctx, bson.A{
			bson.D{{Key: "$currentOp", Value: everyone}}, bson.D{{Key: "$match", Value: match}},
		}))
}

// relax gives builds of another process the quorum, where they are of indexes that are
// waited for. It reports whether that can have changed something.
func (b *Builds) relax(ctx context.Context, u *build) (changed bool) {
	if !b.c.TakesCommitQuorum() {
		return false
	}
	db, coll := mongo.SplitNS(u.ns)
	for _, names := range b.groups(ctx, u) {
		if has := entry(ctx, b.c, "$all", names); has != nil && sameQuorum(has.Lookup("commitQuorum"), b.quorum) {
			continue
		}
		_, err := b.c.Write(ctx, db, bson.D{{Key: "setIndexCommitQuorum", Value: coll}, {Key: "indexNames", Value: names},
			{Key: "commitQuorum", Value: b.quorum}})
		if err != nil {
			b.log.Debug("the quorum of an index build stays", "ns", u.ns, "indexes", names, "error", err)
			continue
		}
		b.log.Info("an index build under way waits for fewer members now",
			"ns", u.ns, "indexes", names, "commitQuorum", b.quorum)
		changed = true
	}
	return changed
}

// groups are the names of the indexes of each build under way that has one of those that
// are waited for: the server knows a build by all its names.
func (b *Builds) groups(ctx context.Context, u *build) (out [][]string) {
	specs, err := listSpecs(ctx, b.c, u.ns, withBuilds())
	if err != nil { // it cannot describe them: perhaps an earlier run has begun the same one
		return [][]string{u.names}
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
		if slices.ContainsFunc(byID[id], func(name string) bool { return slices.Contains(u.names, name) }) {
			out = append(out, byID[id])
		}
	}
	return out
}

// entry is what a replica set keeps of a build that has all of some indexes, or $in one of
// them; nil where that cannot be read.
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

// reason finds the members for which a build waits, "" where none says so.
func (b *Builds) reason(ctx context.Context, u *build) string {
	var all []string
	err := b.c.EachSet(ctx, func(name string, set *mongo.Cluster) error {
		for _, why := range absent(ctx, set, entry(ctx, set, "$in", u.names)) {
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

// absent says which members of a set are down, or else have not built what an entry is of.
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
	var ready []string
	if list, ok := entry.Lookup("commitReadyMembers").ArrayOK(); ok {
		values, _ := list.Values()
		for _, v := range values {
			name, _ := v.StringValueOK()
			ready = append(ready, name)
		}
	}
	for _, name := range members {
		if !slices.Contains(ready, name) {
			down = append(down, "member "+name+" has not built it")
		}
	}
	return down
}

// BuildProgress is how far an index build on the target is, in documents of
// its present stage.
type BuildProgress struct {
	NS          string
	Stage       string // the server's words, e.g. "scanning collection"
	Done, Total int64
}

// Progress asks the target's primary for the index builds under way.
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
		// "Index Build: scanning collection Index Build: scanning collection: 894/200000 0%"
		stage, _, _ := strings.Cut(strings.TrimPrefix(str(op, "msg"), "Index Build: "), " Index Build")
		p := BuildProgress{NS: str(op, "ns"), Stage: stage}
		if coll := str(op, "command", "createIndexes"); coll != "" && str(op, "command", "$db") != "" {
			p.NS = str(op, "command", "$db") + "." + coll
		}
		p.Done, _ = op.Lookup("progress", "done").AsInt64OK()
		p.Total, _ = op.Lookup("progress", "total").AsInt64OK()
		out = append(out, p)
	}
	return out, nil
}
