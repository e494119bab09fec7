package precheck

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// between is a planner of a new job between two deployments of the newest tested version, which
// have answered that they are empty.
func between(source, target mongo.Kind) *planner {
	side := func(k mongo.Kind, id byte) *mongo.Cluster {
		_, newest := mongo.Tested()
		host := string('a'+rune(id)) + ":27017"
		return &mongo.Cluster{Info: mongo.Info{Kind: k, Version: newest, SetID: bson.ObjectID{id}, Hosts: []string{host}}}
	}
	p := &planner{plan: &Plan{}, Input: Input{Job: "j", Source: side(source, 1), Target: side(target, 2),
		Mode: state.ModeAll, Desired: &placing.Source{}}}
	p.seen.job = func() (state.Job, bool, error) { return state.Job{}, false, nil }
	p.has()
	p.targetHas()
	return p
}

// with has the planner go by rules.
func (p *planner) with(t *testing.T, c transform.Config) *planner {
	t.Helper()
	rules, err := transform.New(c)
	if err != nil {
		t.Fatal(err)
	}
	p.Rules = rules
	return p
}

// has gives the source a catalog.
func (p *planner) has(colls ...schema.Collection) {
	p.seen.collections = func() ([]schema.Collection, error) { return colls, nil }
}

// targetHas gives the target collections.
func (p *planner) targetHas(names ...string) {
	have := map[string]int64{}
	for _, ns := range names {
		have[ns] = 1
	}
	p.seen.existing = func() (map[string]int64, error) { return have, nil }
}

// resumes has the job be one that has begun.
func (p *planner) resumes(at state.Phase) {
	p.plan.Resumes, p.plan.ResumePhase, p.job.Phase = true, at, at
}

// coll is a collection of a catalog with indexes, each given as the JSON of its specification.
func coll(t *testing.T, ns, options string, indexes ...string) schema.Collection {
	t.Helper()
	c := schema.Collection{NS: ns, Type: schema.TypeCollection, Options: doc(t, options)}
	for _, text := range indexes {
		spec := doc(t, text)
		c.Indexes = append(c.Indexes, stream.Index{Name: spec.Lookup("name").StringValue(), Spec: spec})
	}
	return c
}

func doc(t *testing.T, json string) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		t.Fatalf("%s: %v", json, err)
	}
	return kit.Raw(d)
}

// lines are the checks of some outcomes, all of them when none are given: "fail name: message".
func (p *planner) lines(levels ...Level) (out []string) {
	for _, c := range p.plan.Checks {
		if len(levels) == 0 || slices.Contains(levels, c.Level) {
			out = append(out, string(c.Level)+" "+c.Name+": "+c.Message)
		}
	}
	return out
}

// expect compares lines with what each begins with.
func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("%s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// errAnswer is what a side answers that cannot be asked.
var errAnswer = errors.New("no answer")

// TestUnanswered: what a side has not answered ends the plan, and is no check that passed.
func TestUnanswered(t *testing.T) {
	p := between(mongo.KindReplicaSet, mongo.KindSharded)
	p.seen = seen{
		job:          func() (state.Job, bool, error) { return state.Job{}, false, errAnswer },
		others:       func() ([]state.Job, error) { return nil, errAnswer },
		collections:  func() ([]schema.Collection, error) { return nil, errAnswer },
		existing:     func() (map[string]int64, error) { return nil, errAnswer },
		databases:    func() ([]string, error) { return nil, errAnswer },
		omissions:    func() ([]schema.Omission, error) { return nil, errAnswer },
		sourceGrants: func() (grants, error) { return nil, errAnswer },
	}
	of, by := content{p}, rules{p}
	for name, err := range map[string]error{
		"resume": stored{p}.resume(t.Context()), "rivals": stored{p}.rivals(t.Context()),
		"collections": of.collections(t.Context()), "existing": of.existing(t.Context()),
		"omissions": of.omissions(t.Context()), "cases": by.cases(t.Context()), "filters": by.filters(t.Context()),
		"sharding": sharder{p}.sharding(t.Context()), "privileges": access{p}.privileges(t.Context()),
	} {
		if !errors.Is(err, errAnswer) {
			t.Errorf("%s: %v", name, err)
		}
	}
	expect(t, p.lines())
}
