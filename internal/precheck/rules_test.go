package precheck

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// TestUnusedRules: a rule that matches nothing is reported, with what was perhaps meant.
func TestUnusedRules(t *testing.T) {
	names := []string{"shop.orders", "shop.users", "crm.people"}
	for _, c := range []struct {
		name    string
		rules   transform.Config
		allowed bool
		want    string // level message hint, "" when all is well
	}{
		{"all used", transform.Config{Include: []string{"shop", "crm.p*"}, Exclude: []string{"*.users"},
			Rename: []string{"shop=s", "crm.people=c.d"}}, false, ""},
		{"collection", transform.Config{Include: []string{"shop.orders", "shop.uesrs"}}, false,
			"fail --include shop.uesrs matches nothing on the source did you mean shop.users? --allow-missing accepts what " +
				"is yet to come"},
		{"database", transform.Config{Include: []string{"shpo"}}, false,
			"fail --include shpo.* matches nothing on the source did you mean shop.*? --allow-missing accepts what is yet to " +
				"come"},
		{"wildcard", transform.Config{Include: []string{"shop.order??"}}, false,
			"fail --include shop.order?? matches nothing on the source did you mean shop.orders? --allow-missing accepts " +
				"what is yet to come"},
		{"nothing near", transform.Config{Include: []string{"billing"}}, false,
			"fail --include billing.* matches nothing on the source --allow-missing accepts what is yet to come"},
		{"yet to come", transform.Config{Include: []string{"billing"}}, true,
			"warn --include billing.* matches nothing on the source "},
		{"exclude", transform.Config{Exclude: []string{"shop.user"}}, false,
			"warn --exclude shop.user matches nothing on the source did you mean shop.users?"},
		{"rename of a database", transform.Config{Rename: []string{"crn=x"}}, false,
			"warn --rename crn matches nothing on the source did you mean crm?"},
		{"rename of a collection", transform.Config{Rename: []string{"crm.peopel=crm.x"}}, false,
			"warn --rename crm.peopel matches nothing on the source did you mean crm.people?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules, err := transform.New(c.rules)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, check := range unused(rules.Unused(names), names, c.allowed) {
				got = append(got, string(check.Level)+" "+check.Message+" "+check.Hint)
			}
			if text := strings.Join(got, "\n"); text != c.want {
				t.Errorf("%s\nwant %s", text, c.want)
			}
		})
	}
}

// TestManyUnused: so many rules that match nothing make a short report.
func TestManyUnused(t *testing.T) {
	var c transform.Config
	for i := range 500 {
		c.Include = append(c.Include, fmt.Sprintf("none%d.*", i))
	}
	rules, err := transform.New(c)
	if err != nil {
		t.Fatal(err)
	}
	list := unused(rules.Unused(nil), nil, false)
	if n := len(list); n != 51 || list[50].Level != Fail ||
		list[50].Message != "450 more rules match nothing on the source" {
		t.Errorf("%d: %v", n, list[n-1])
	}
	if lines := Failed(list).Lines(); len(lines) > 50 || lines[len(lines)-1] != "  and 31 more" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

// TestCaseClashes: databases whose names differ in case only cannot be on one target.
func TestCaseClashes(t *testing.T) {
	t.Parallel()
	to := func(names ...string) (out []Collection) {
		for _, ns := range names {
			out = append(out, Collection{Target: ns})
		}
		return out
	}
	for _, c := range []struct {
		name  string
		colls []Collection
		have  []string
		want  string
	}{
		{"none", to("shop.a", "shop.b", "other.a"), []string{"shop", "more"}, ""},
		{"the target's", to("shop.a", "shop.b"), []string{"Shop"}, "the target has the database Shop, and shop is to come"},
		{"by rules", to("shop.a", "Shop.a", "Shop.b"), nil, "the rules lead to the databases shop and Shop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := strings.Join(caseClashes(c.colls, c.have), "\n")
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" || strings.Contains(got, "\n") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestRulesOfCatalog: collections for which the rules cannot be kept are named, before anything is read of them.
func TestRulesOfCatalog(t *testing.T) {
	capped := coll(t, "a.capped", `{"capped":true,"size":4096}`)
	ttl := coll(t, "a.ttl", `{}`, `{"key":{"at":1},"name":"at_1","expireAfterSeconds":60}`)
	odd := coll(t, "a.ttl", `{}`, `{"key":{"at":1},"name":"at_1","expireAfterSeconds":60,`+
		`"partialFilterExpression":{"x":{"$geoWithin":{}}}}`)
	folded := coll(t, "a.folded", `{"collation":{"locale":"fr"}}`)
	view := schema.Collection{NS: "a.view", Type: schema.TypeView, Options: doc(t, `{"viewOn":"ttl","pipeline":[]}`)}
	for _, c := range []struct {
		name  string
		rules transform.Config
		colls []schema.Collection
		want  []string
	}{
		{"no rules", transform.Config{}, []schema.Collection{capped, ttl, folded, view}, nil},
		{"filter", transform.Config{Filter: []string{`a.*={"x":"y"}`}}, []schema.Collection{capped, ttl, folded, view},
			[]string{"fail filters: a.capped cannot be filtered: it is capped",
				"fail filters: a.folded cannot be filtered: it has a collation"}},
		{"fields", transform.Config{Fields: []string{`a.*={"drop":["x"]}`}}, []schema.Collection{capped, ttl},
			[]string{"fail rules: the fields of a.capped cannot be mapped: it is capped"}},
		{"expired stay", transform.Config{Skip: []string{"a.*=ttl"}}, []schema.Collection{ttl, folded},
			[]string{"ok rules: a.ttl: documents that expire (at + 60 s) stay on the target"}},
		{"expired unknown", transform.Config{Skip: []string{"a.*=ttl"}}, []schema.Collection{odd},
			[]string{"fail rules: "}},
		{"view of versions", transform.Config{History: []string{"a.ttl"}}, []schema.Collection{ttl, view},
			[]string{"warn rules: view a.view is left out: it reads a collection of which the target holds versions"}},
		{"history of capped", transform.Config{History: []string{"a.capped"}}, []schema.Collection{capped},
			[]string{"fail rules: the target cannot hold the history of a.capped: it is capped"}},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet).with(t, c.rules)
		p.Mode = state.ModeStructure // which draws no documents
		p.has(c.colls...)
		if err := (rules{p}).filters(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want...) })
	}
}

// TestRulesOfResumed: a stored job checks the collections that it has. What makes others may be left
// out, and is checked when it comes.
func TestRulesOfResumed(t *testing.T) {
	uuid := func(n byte) bson.Binary {
		return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: append(make([]byte, 15), n)}
	}
	for name, c := range map[string]struct {
		has   schema.Name
		phase state.Phase
		fails bool
	}{
		"it has the collection":     {schema.Name{NS: "a.c", UUID: uuid(1)}, state.PhaseFollowing, true},
		"it does not know the UUID": {schema.Name{NS: "a.c"}, state.PhaseFollowing, true},
		"its creation is skipped": {schema.Name{NS: "a.c", UUID: uuid(1),
			Presence: schema.Presence{Gone: true}}, state.PhaseFollowing, false},
		"another one had the name":    {schema.Name{NS: "a.c", UUID: uuid(2)}, state.PhaseFollowing, false},
		"it was made since":           {schema.Name{NS: "a.d", UUID: uuid(1)}, state.PhaseFollowing, false},
		"the copy has not even begun": {schema.Name{NS: "a.d", UUID: uuid(1)}, state.PhaseCatalog, true},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet).with(t, transform.Config{Filter: []string{`a.*={"x":"y"}`}})
		capped := coll(t, "a.c", `{"capped":true,"size":4096}`)
		capped.UUID = uuid(1)
		p.has(capped)
		p.resumes(c.phase)
		p.seen.names = func() (*schema.Names, error) { return schema.NewNames([]schema.Name{c.has}), nil }
		if err := (rules{p}).filters(t.Context()); err != nil || (len(p.lines(Fail)) > 0) != c.fails {
			t.Errorf("%s: %v %q", name, err, p.lines())
		}
	}
}

// TestModFilter: servers before 5.0 find other documents by $mod.
func TestModFilter(t *testing.T) {
	for version, want := range map[mongo.Version][]string{
		{Major: 5}: nil, {Major: 4, Minor: 4}: {"fail filters: a.b: a source before 5.0 evaluates $mod differently"},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet).with(t,
			transform.Config{Filter: []string{`a.b={"x":{"$mod":[2,1]}}`}})
		p.Source.Info.Version, p.Mode = version, state.ModeStructure
		p.has(coll(t, "a.b", `{}`))
		if err := (rules{p}).filters(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect(t, p.lines(), want...)
	}
}

// TestEffects: what rules would do to documents that they are not meant for is a warning.
func TestEffects(t *testing.T) {
	p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
	for _, e := range []transform.Effect{
		{Rule: "a=b", Docs: 1000, Kept: 7},
		{Rule: "a=c", Docs: 2000, Failed: 1500, Why: []transform.Reason{{Text: "no number"}}},
		{Rule: "a=d", Docs: 10, Marked: 2},
	} {
		rules{p}.effect(e)
	}
	expect(t, p.lines(), "warn fields: 1,500 of 2,000 sampled documents cannot be mapped by a=c: no number",
		"warn soft-delete: 2 of 10 sampled documents already have the field of a=d")
}

// TestCases: the names of databases are compared until the copy begins.
func TestCases(t *testing.T) {
	p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
	p.seen.databases = func() ([]string, error) { return []string{"Shop"}, nil }
	p.plan.Collections = []Collection{{Target: "shop.a"}}
	for _, copied := range []bool{true, false} {
		if p.plan.Resumes = copied; copied {
			p.resumes(state.PhaseCopying)
		}
		if err := (rules{p}).cases(t.Context()); err != nil || p.plan.Checks.Failed() == copied {
			t.Errorf("copied %t: %v, %v", copied, p.lines(), err)
		}
	}
}
