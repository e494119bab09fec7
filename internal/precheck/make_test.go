package precheck

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

// stubStore is the store of a job, as far as a plan reads it.
type stubStore struct {
	state.Store
	job     state.Job // none without a name
	catalog []state.Mapped
}

func (s *stubStore) Reload(context.Context) (state.Job, bool, error) {
	return s.job, s.job.ID != "", nil
}

func (s *stubStore) LoadOthers(context.Context, bool) ([]state.Job, error) { return nil, nil }

func (s *stubStore) LoadCatalog(context.Context) ([]state.Mapped, error) { return s.catalog, nil }

// bed is a source and a target, and a job between them.
type bed struct {
	*testing.T
	source, target *mongo.Cluster
	store          *stubStore
}

func newBed(t *testing.T) *bed {
	t.Helper()
	connect := func() *mongo.Cluster { return dial.Cluster(t, lab.ForTest(t, lab.Options{}).URI(), mongo.Options{}) }
	return &bed{T: t, source: connect(), target: connect(), store: &stubStore{}}
}

func (b *bed) run(c *mongo.Cluster, db string, commands ...string) {
	b.Helper()
	for _, text := range commands {
		var cmd bson.D
		if err := bson.UnmarshalExtJSON([]byte(text), false, &cmd); err != nil {
			b.Fatal(err)
		}
		if err := c.Client.Database(db).RunCommand(b.Context(), cmd).Err(); err != nil {
			b.Fatalf("%s: %v", text, err)
		}
	}
}

// plan is that of a job with rules.
func (b *bed) plan(rules transform.Config, change func(*Input)) (*Plan, error) {
	b.Helper()
	set, err := transform.New(rules)
	if err != nil {
		b.Fatal(err)
	}
	in := Input{Job: "j", Source: b.source, Target: b.target, Rules: set, Store: b.store, Mode: state.ModeAll,
		Schema: schema.NewTarget(b.target, schema.TargetOptions{Job: "j"}), Desired: &placing.Source{Cluster: b.source},
		Keys: &transform.Keys{}, Spool: oplog.NewSpooler(b.source, oplog.SpoolOptions{}),
		Window:   origin.Set{Cluster: b.source}.Window,
		ReadFrom: func(stream.Position) (mongo.OpTime, error) { return mongo.OpTime{}, nil }}
	if change != nil {
		change(&in)
	}
	return Make(b.Context(), in)
}

// outcome is the level and the message of the check of a name, of several the last that is not ok.
func (b *bed) outcome(p *Plan, name string) string {
	found := ""
	for _, c := range p.Checks {
		if c.Name == name && (found == "" || c.Level != OK) {
			found = string(c.Level) + " " + c.Message
		}
	}
	return found
}

// TestMake: a plan of real servers, with the catalog that they have.
func TestMake(t *testing.T) {
	b := newBed(t)
	b.run(b.source, "shop", `{"create":"orders"}`,
		`{"createIndexes":"orders","indexes":[{"key":{"a":1},"name":"a_1"},{"key":{"t":1},"name":"t_1","expireAfterSeconds":60}]}`,
		`{"insert":"orders","documents":[{"_id":1,"x":1},{"_id":2,"x":"two"},{"_id":3,"x":1}]}`,
		`{"create":"ring","capped":true,"size":4096}`, `{"create":"recent","viewOn":"orders","pipeline":[]}`)
	b.run(b.source, "crm", `{"create":"people"}`)
	b.run(b.target, "shop", `{"create":"orders"}`)
	b.run(b.target, "CRM", `{"create":"others"}`)

	for _, c := range []struct {
		name   string
		rules  transform.Config
		change func(*Input)
		want   map[string]string // by check
	}{
		{"all", transform.Config{}, nil, map[string]string{
			"collections": "ok 4, ", "target collections": "fail 1 exist already: shop.orders",
			"oplog": "ok keeps what the job reads for ",
			"names": "fail the target has the database CRM, and crm is to come", "disk": "ok ", "scope": "ok ",
			"source privileges": "ok sufficient", "target privileges": "ok sufficient", "resume": "", "left out": ""}},
		{"a part", transform.Config{Include: []string{"shop.orders"}, Rename: []string{"shop=store"},
			Filter: []string{`shop.orders={"x":1}`}}, nil, map[string]string{
			"collections": "ok 1, ", "target collections": "ok none of them exists yet", "names": "",
			"filters": "ok shop.orders: 2 of 3 sampled documents are kept"}},
		{"mistyped", transform.Config{Include: []string{"shop.order"}}, nil, map[string]string{
			"names": "fail --include shop.order matches nothing on the source", "collections": "ok 0, "}},
		{"no such shards", transform.Config{Include: []string{"shop"}}, func(in *Input) {
			in.Desired.Rules, _ = placing.ParseRules([]string{"shop.orders=_id:1"})
		}, map[string]string{"sharding": "fail the target is not a sharded cluster"}},
		{"dropped", transform.Config{Include: []string{"shop"}}, func(in *Input) { in.OnExisting = state.ExistingDrop },
			map[string]string{"target collections": "warn 1 exist and will be DROPPED: shop.orders"}},
		{"structure", transform.Config{Include: []string{"shop"}}, func(in *Input) { in.Mode = state.ModeStructure },
			map[string]string{"oplog": "", "disk": "", "collections": "ok 3, "}},
		{"short window", transform.Config{Include: []string{"shop"}}, func(in *Input) { in.WarnWindow = time.Hour },
			map[string]string{"oplog": "ok keeps what the job reads for "}}, // for it is not full
		{"lost", transform.Config{Include: []string{"shop"}}, func(in *Input) {
			in.ReadFrom = func(stream.Position) (mongo.OpTime, error) {
				return mongo.OpTime{TS: bson.Timestamp{T: 1, I: 1}}, nil
			}
		}, map[string]string{"oplog": "fail it begins at "}},
		{"itself", transform.Config{}, func(in *Input) { in.Target = in.Source },
			map[string]string{"identity": "fail source and target are the same replica set", "collections": ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := b.plan(c.rules, c.change)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range c.want {
				if got := b.outcome(p, name); !strings.HasPrefix(got, want) || want == "" && got != "" {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if err := (&Error{Plan: p}).Unwrap(); (err != nil) != p.Checks.Failed() {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestMakeLater: a job that is stored is planned from where it stands, and one that begins anew with
// what its earlier life has made.
func TestMakeLater(t *testing.T) {
	b := newBed(t)
	b.run(b.source, "shop", `{"create":"orders"}`)
	b.run(b.target, "shop", `{"create":"orders"}`, `{"create":"gone"}`)
	rules := transform.Config{Include: []string{"shop", "none"}}
	set, _ := transform.New(rules)
	job := state.Job{ID: "j", Mode: state.ModeAll, Rules: set.String(), SourceSet: b.source.Info.SetID,
		TargetSet: b.target.Info.SetID, Phase: state.PhaseFollowing}
	b.store.job = job
	b.store.catalog = []state.Mapped{{Collection: schema.Collection{NS: "shop.gone"}, Target: "shop.gone"},
		{Collection: schema.Collection{NS: "shop.never"}, Target: "shop.never",
			Presence: schema.Presence{Gone: true}},
		{Collection: schema.Collection{NS: "crm.other"}, Target: "crm.other"}}

	p, err := b.plan(rules, nil)
	if err != nil || p.Checks.Failed() || !p.Resumes || p.ResumePhase != state.PhaseFollowing {
		t.Fatalf("%+v, %v", p, err)
	}
	if got := b.outcome(p, "names"); got != "" { // whatever the source has dropped since
		t.Errorf("%s", got)
	}
	p, err = b.plan(rules, func(in *Input) { in.Restart, in.AllowMissing, in.OnExisting = true, true, state.ExistingDrop })
	if err != nil || p.Resumes {
		t.Fatalf("%+v, %v", p, err)
	}
	want := "warn 2 exist and will be DROPPED: shop.gone, shop.orders"
	if got := b.outcome(p, "target collections"); got != want {
		t.Errorf("%s", got)
	}
	b.store.job.Phase, b.store.job.FinalizedAt = state.PhaseFinalized, time.Now()
	if p, err = b.plan(rules, nil); err != nil || p.Finalized == nil || b.outcome(p, "collections") != "" {
		t.Errorf("%+v, %v", p, err)
	}
}
