package filecopy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/seed"
)

// Plan returns what Run would do and what prevents it. It writes nothing.
func (j *Job) Plan(ctx context.Context) (*job.Plan, error) {
	there := j.await(ctx)
	if j.all(seed.StageRunning) || j.unanswered() && there {
		if j.running() == nil {
			if err := j.open(ctx); err != nil {
				return nil, err
			}
		}
		plan, err := j.running().Plan(ctx)
		j.plan = plan
		return plan, err
	}
	info := j.source.Info
	p := &planner{Job: j, plan: &job.Plan{Job: j.spec.Job, Mode: j.spec.Mode, Source: j.source.Address(),
		SourceInfo: fmt.Sprintf("%s %s, MongoDB %s, FCV %s", info.Kind, info.SetName, info.Version, info.FCV),
		Target:     mongo.Redact(j.spec.Target), TargetInfo: fmt.Sprintf("replica set %s of %d, to be made of files", j.set,
			len(j.targets))}}
	for _, step := range []func(context.Context) error{p.deployment, p.collections, p.agents, p.files, p.members} {
		if err := step(ctx); err != nil {
			return nil, err
		}
		if p.plan.Checks.Failed() {
			break
		}
	}
	j.plan = p.plan
	return p.plan, nil
}

// await asks all agents for their states until they answer: one may be started again just now. Where one does not soon,
// it asks the new set meanwhile, and reports whether that has been made.
func (j *Job) await(ctx context.Context) (there bool) {
	const soon, startTime = time.Second, 8 * time.Second
	asked, stop := context.WithCancel(ctx)
	defer stop()
	var asking sync.WaitGroup
	asking.Go(func() { there = pace.Pause(asked, soon) == nil && j.there(asked) })
	waiting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	err := pace.Until(waiting, lookEvery, func() (bool, error) {
		j.look(waiting)
		return !j.unanswered(), nil
	})
	if err == nil { // what does not answer has its own error
		stop()
	}
	asking.Wait()
	return there
}

// unanswered reports that an agent does not answer: it may have been ended.
func (j *Job) unanswered() bool {
	return slices.ContainsFunc(j.targets, func(t *target) bool { return t.state == nil })
}

// there reports that the new set has been made, by what it stores.
func (j *Job) there(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_, err := j.formed(ctx)
	return err == nil
}

type planner struct {
	*Job
	plan *job.Plan
	from *seed.Plan // of the source's agent
}

func (p *planner) add(level precheck.Level, name, hint, format string, args ...any) {
	p.plan.Checks.Add(level, name, fmt.Sprintf(format, args...), hint)
}

func (p *planner) deployment(ctx context.Context) error {
	const how = "use --copy documents"
	switch info := p.source.Info; {
	case info.Kind == mongo.KindSharded:
		p.add(precheck.Fail, "deployment", how, "the source is a sharded cluster: the files of its shards stand at "+
			"different positions, and some may lack a transaction that others have")
		return nil
	case info.Role != "":
		p.add(precheck.Fail, "deployment", "connect to the cluster's routers (mongos), and "+how,
			"the source is a %s of a sharded cluster: its files refer to other servers of that cluster", info.Role)
		return nil
	case info.Kind != mongo.KindReplicaSet:
		p.add(precheck.Fail, "deployment", how, "the source is a %s: only a replica set has an oplog to follow", info.Kind)
		return nil
	}
	if err := p.source.CheckComplete(ctx, false); err != nil {
		if _, is := errors.AsType[*mongo.Incomplete](err); !is {
			return mongo.Wrap(err, "source")
		}
		p.add(precheck.Fail, "deployment", mongo.HintOf(err), "source: %s", err)
		return nil
	}
	p.add(precheck.OK, "deployment", "", "a replica set, which can be followed from the position of its files")
	if err := p.source.Oplog().FindOne(ctx, bson.D{}).Err(); err != nil {
		if !mongo.IsCode(err, mongo.CodeUnauthorized) {
			return mongo.Wrap(err, "read the source's oplog")
		}
		p.add(precheck.Fail, "privileges", "grant the user the role backup", "the user may not read the source's oplog")
	}
	return nil
}

func (p *planner) collections(ctx context.Context) error {
	colls, err := schema.List(ctx, p.source, schema.Scope{NS: p.rules.Match, DB: p.rules.MatchDB})
	if err != nil {
		return err
	}
	for _, c := range colls {
		p.plan.Collections = append(p.plan.Collections, precheck.Collection{Source: c.NS, Target: c.NS, Type: c.Type,
			Docs: c.Count, Bytes: c.Bytes, Indexes: len(c.Indexes)})
	}
	if len(colls) == 0 && p.rules.Includes() && !p.spec.AllowMissing {
		p.add(precheck.Fail, "include", "--allow-missing accepts what is yet to come",
			"--include %s matches nothing on the source", strings.Join(p.spec.Rules.Include, ","))
	}
	return nil
}

func (p *planner) agents(ctx context.Context) (err error) {
	for _, t := range p.targets {
		if t.state == nil {
			p.add(precheck.Fail, "target agents", "start millrace seed agent there: "+mongo.HintOf(t.err), "%s: %s", t.address,
				mongo.Brief(t.err))
		}
	}
	if p.plan.Checks.Failed() {
		return nil
	}
	if p.all(seed.StageCopied) { // the source's files are not needed any more
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if p.from, err = p.agent.Describe(asking); err != nil {
		p.add(precheck.Fail, "source agent", mongo.HintOf(err), "%s: %s", p.o.Source, mongo.Brief(err))
		return ctx.Err()
	}
	p.bytes = p.from.Bytes
	// Sets often have the same name. Without the right to read the configuration only that is compared.
	config, unread := mongo.ReadSetConfig[mongo.SetConfig](asking, p.source.Client)
	member := slices.ContainsFunc(config.Members, func(m mongo.MemberConfig) bool { return m.Host == p.from.Origin.Host })
	if o := p.from.Origin; o.SetName != p.source.Info.SetName || unread == nil && !member {
		p.add(precheck.Fail, "source agent", "name the agent of a member of the source", "%s has the files of %s of set %q, "+
			"not of the source's set %q", p.o.Source, o.Host, o.SetName, p.source.Info.SetName)
	}
	if p.from.Way == seed.WayStopped {
		p.add(precheck.Fail, "source agent", "start seed serve with --uri of a running member",
			"%s serves a stopped member, whose position may be too old", p.o.Source)
	}
	return nil
}

func (p *planner) files(ctx context.Context) error {
	if p.from == nil {
		return nil
	}
	for _, t := range p.targets {
		asking, cancel := context.WithTimeout(ctx, time.Minute) // it runs the operator's mongod
		got, err := t.Check(asking, p.from, p.set)
		cancel()
		if err != nil {
			return fmt.Errorf("ask the agent %s for its checks: %w", t.address, err)
		}
		for _, c := range got.Checks {
			p.plan.Checks.Add(c.Level, c.Name, t.state.Own.Host+": "+c.Message, c.Hint)
		}
	}
	p.add(precheck.OK, "files", "", "%s in %d files of %s, by %s", humanize.Bytes(uint64(p.from.Bytes)), p.from.Files,
		p.from.Origin.Host, p.from.Way)
	return nil
}

func (p *planner) members(context.Context) error {
	var hosts []string
	votes, electable := 0, false
	for _, t := range p.targets {
		own := t.state.Own
		if slices.Contains(hosts, own.Host) {
			p.add(precheck.Fail, "members", "give each agent a --member of its own", "two agents make the member %s", own.Host)
		}
		hosts = append(hosts, own.Host)
		votes += own.Votes
		electable = electable || own.Votes > 0 && own.Priority > 0
	}
	switch {
	case !electable || votes > 7:
		p.add(precheck.Fail, "members", "change --votes and --priority of the agents",
			"a set needs a member that can be primary, and at most seven votes; it has %d", votes)
	case votes%2 == 0:
		p.add(precheck.Warn, "members", "an odd number of votes bears as many failures with fewer members",
			"the set has %d votes", votes)
	}
	if _, err := p.formation(); err != nil {
		p.add(precheck.Fail, "target agents", mongo.HintOf(err), "%s", err)
	}
	scope := "users and roles arrive"
	if !p.spec.Users {
		scope = "users and roles are removed"
	}
	p.add(precheck.OK, "members", "", "%s; %s", strings.Join(hosts, ", "), scope)
	p.add(precheck.OK, "version", "", "the set has the source's series; to upgrade it, finalize first, then upgrade its "+
		"members one after the other")
	return nil
}
