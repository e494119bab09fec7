package trial

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test/commands"
	"github.com/millrace/millrace/test/history"
)

// model is that of package commands for one trial.
type model struct {
	*commands.World
	begun, copied bool
	err           error // why it has no verdict
}

func newModel(args []string) *model {
	of := commands.ReadArgs(args)
	if of == nil {
		of = func(string) commands.Rules { return commands.Rules{} }
	}
	return &model{World: commands.New(of, readRules(args).has)}
}

// look sees how far the job is, before a command of the source. A job that was
// started has to have its start position first, so that it is known which commands
// come before.
func (m *model) look(ctx context.Context, p *play) {
	if len(p.procs) == 0 || m.copied {
		return
	}
	at := phaseOrder(p.checkpoint(ctx).Phase)
	for !m.begun && at < phaseOrder("copying") && !p.allOver() && nap(ctx, 5*time.Millisecond) == nil {
		at = phaseOrder(p.checkpoint(ctx).Phase)
	}
	m.advance(at)
}

// advance notes the phase of a job.
func (m *model) advance(at int) {
	if !m.begun && at >= phaseOrder("copying") {
		m.begun = true
		m.Begin()
	}
	if m.begun && !m.copied && at >= phaseOrder("following") {
		m.copied = true
		m.Copied()
	}
}

// happened does a command that a server has taken.
func (m *model) happened(s history.Step, foreign bool) {
	step, ok := commands.Parse(history.Name(Database, s.DB), s.Cmd)
	switch {
	case m.err != nil:
	case !ok:
		m.err = fmt.Errorf("the model does not know the command %s", s.Cmd)
	case foreign && (m.begun || step.Do != commands.Insert):
		m.err = fmt.Errorf("the model does not know what somebody else does to the target: %s", step)
	case foreign:
		m.Own(step.NS, step.Doc)
	default:
		m.err = m.Apply(step)
	}
}

// verdict is that on a job that has ended.
func (m *model) verdict(ctx context.Context, p *play, res Result, code int) Result {
	res.Verdict = Equal
	if !m.begun { // it was started only for the verdict
		m.advance(phaseOrder("finalized"))
	}
	admits := strings.Contains(res.Output, "finalized, but the target differs") && len(m.Limits) > 0
	switch {
	case m.err != nil:
		return res
	case m.Stops != "" && code == 0:
		res.Verdict, res.Differences = Differs, []string{"the job ends well, though " + m.Stops + " must not become capped"}
		return res
	case m.Stops != "" && !slices.ContainsFunc(append(m.Capped(), m.Stops),
		func(ns string) bool { return strings.Contains(res.Message, ns) }):
		res.Verdict = FalseAlarm
		return res
	case m.Stops != "":
	case code != 0 && !admits, p.tr.Calm && p.fell != "" && !admits:
		res.Verdict, res.Message = FalseAlarm, p.fell
		return res
	}
	actual, source := map[string]commands.Actual{}, map[string]commands.Actual{}
	for side, into := range map[*side]map[string]commands.Actual{p.target: actual, p.source: source} {
		client, err := side.client(ctx)
		for _, db := range history.Databases() {
			if err == nil {
				err = commands.Read(ctx, client.Database(history.Name(Database, db)), into)
			}
		}
		if err != nil {
			m.err = err
			return res
		}
	}
	if m.Stops == "" {
		res.Differences = m.Compare(actual, source)
	} else if is := actual[m.Stops]; is.Capped { // how far it came before, nobody knows
		res.Differences = []string{m.Stops + " has become capped"}
	}
	if len(res.Differences) > 0 {
		res.Verdict = Differs
	}
	return res
}

// noteDrop notes a collection that somebody else drops on the target.
func (p *play) noteDrop(s history.Step) {
	if first := s.Cmd.Index(0); first.Key() == "drop" {
		p.dropped = append(p.dropped, history.Name(Database, s.DB)+"."+first.Value().StringValue())
	}
}

// namesDropped reports whether an output names, where it says why the job has ended, a
// collection that somebody else has dropped.
func (p *play) namesDropped(out string) bool {
	last := lastError(out)
	return slices.ContainsFunc(p.dropped, func(ns string) bool { return strings.Contains(last, ns) })
}

// uuidOf begins the place of a collection's UUID in an applyOps: "uuid of DB.c".
const uuidOf = "uuid of DB."

// withUUIDs puts UUIDs of collections, as they are now, into a user's applyOps.
func withUUIDs(ctx context.Context, client *mongo.Client, cmd bson.Raw) (bson.Raw, error) {
	if !strings.Contains(string(cmd), uuidOf) {
		return cmd, nil
	}
	var d bson.D
	if err := bson.Unmarshal(cmd, &d); err != nil {
		return nil, err
	}
	out, err := putUUIDs(ctx, client.Database(Database), d)
	if err != nil {
		return nil, err
	}
	return bson.Marshal(out)
}

// putUUIDs does so at all depths.
func putUUIDs(ctx context.Context, db *mongo.Database, x any) (_ any, err error) {
	switch x := x.(type) {
	case bson.D:
		for i := range x {
			if x[i].Value, err = putUUIDs(ctx, db, x[i].Value); err != nil {
				return nil, err
			}
		}
	case bson.A:
		for i := range x {
			if x[i], err = putUUIDs(ctx, db, x[i]); err != nil {
				return nil, err
			}
		}
	case string:
		name, ok := strings.CutPrefix(x, uuidOf)
		if !ok {
			return x, nil
		}
		specs, err := db.ListCollectionSpecifications(ctx, D("name", name))
		if err != nil {
			return nil, err
		}
		if len(specs) != 1 || specs[0].UUID == nil {
			return nil, fmt.Errorf("no collection %s, whose UUID is wanted", name)
		}
		return *specs[0].UUID, nil
	}
	return x, nil
}
