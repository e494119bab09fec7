package reverse

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// canonical is the form in which rules are compared.
func canonical(t *testing.T, r transform.Config) string {
	t.Helper()
	s, err := compiled(r)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	return s.String()
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		there string // as Set.String has it
		names []Name
		back  string
	}{
		{"everything", nil, "everything"},
		{"include shop.*; exclude shop.tmp", nil, "include shop.*; exclude shop.tmp"},
		{"rename shop=store", nil, "exclude shop.*; rename store=shop"},
		{"include shop.*; exclude shop.tmp; rename shop=store", nil, "include store.*; exclude store.tmp; rename store=shop"},
		{"rename a=b; rename b=a", nil, "rename a=b; rename b=a"},
		{"rename a=b; rename b=c", nil, "exclude a.*; rename b=a; rename c=b"},
		{"include a.*; rename a.x=a.y; rename a.y=a.x", nil,
			"include a.*; include a.x; include a.y; rename a.x=a.y; rename a.y=a.x"},
		{"include a.*; rename a.x=b.y", nil, "include a.*; include b.y; exclude a.x; rename b.y=a.x"},
		{"rename a=b; rename a.x=b.y", nil, "exclude a.*; exclude b.x; rename b.y=a.x; rename b=a"},
		{"include a*.*; rename ab=c", nil, "include a*.*; include c.*; exclude ab.*; rename c=ab"},
		{"exclude tmp.*; rename shop=tmp", nil, "exclude shop.*; rename tmp=shop"},
		{"exclude *.log; rename a=b", nil, "exclude *.log; exclude a.*; exclude b.log; rename b=a"},
		// Two databases were merged: what there is has a rename of its own.
		{"rename a=b", []Name{{"a.x", "b.x"}, {"b.y", "b.y"}}, "exclude a.*; rename b.y=b.y; rename b=a"},
		// A rename of what is left out is none.
		{"include a.*; rename c=a", nil, "include a.*"},
	} {
		back, losses, err := Invert(Definition{Rules: transform.ParseConfig(c.there), Names: c.names})
		if err != nil || len(losses) > 0 || canonical(t, back.Rules) != c.back {
			t.Errorf("%s: %s, want %s; %v %v", c.there, canonical(t, back.Rules), c.back, losses, err)
			continue
		}
		if err := Holds(back.Rules, back); err != nil {
			t.Errorf("%s: %v", c.there, err)
		}
	}
}

// TestNoInverse: an error says which rule has no inverse.
func TestNoInverse(t *testing.T) {
	for there, want := range map[string]string{
		"rename a=c; rename b=c":                               "a and b both lead to c",
		"exclude t*.x; rename shop=tmp":                        "--exclude t*.x: shop is on the target tmp",
		"include a.*; include b.*; rename a=b; rename b.x=a.x": "leads into the database a",
		"history shop.*":                                       "--history shop.*",
	} {
		if _, _, err := Invert(Definition{Rules: transform.ParseConfig(there)}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", there, err, want)
		}
	}
}

func TestFieldsAndLosses(t *testing.T) {
	for _, c := range []struct{ there, back, losses string }{
		{`{"rename":{"tel":"phone"}}`, `{"rename":{"phone":"tel"}}`, "rename"},
		{`{"rename":{"a":"b","b":"a"}}`, `{"rename":{"b":"a","a":"b"}}`, ""},
		{`{"drop":["card"],"rename":{"tel":"phone"}}`, `{"rename":{"phone":"tel"}}`, "drop rename"},
		{`{"mask":{"mail":"null"}}`, ``, "mask"},
		{`{"set":{"tenant":"a"},"compute":{"sum":"doc.a + doc.b"}}`, `{"drop":["tenant","sum"]}`, "set compute"},
		{`{"move":{"a.b":"c"}}`, `{"move":{"c":"a.b"}}`, "move"},
		{`{"keep":["a"]}`, ``, "keep"},
		{`{"convert":{"n":{"to":"string","otherwise":"keep"}}}`, ``, "convert"},
	} {
		back, losses, err := Invert(Definition{Rules: transform.Config{Fields: []string{"shop.*=" + c.there},
			Rename: []string{"shop=store"}}})
		var names []string
		for _, l := range losses {
			names = append(names, l.Name)
			if l.Note != (l.Name == "rename") || !l.Note && !slices.Contains(Losses(), l.Name) || l.What == "" {
				t.Errorf("%+v", l)
			}
		}
		got := ""
		if len(back.Rules.Fields) > 0 {
			got = strings.TrimPrefix(back.Rules.Fields[0], "store.*=")
		}
		if err != nil || got != c.back || strings.Join(names, " ") != c.losses {
			t.Errorf("%s: %s %v, want %s %s; %v", c.there, got, names, c.back, c.losses, err)
		}
	}
	d := Definition{Rules: transform.Config{Filter: []string{`a.b={"x":1}`}, Skip: []string{"a.b=delete"},
		SoftDelete: []string{"a.c=gone"}}}
	back, losses, err := Invert(d)
	if err != nil || canonical(t, back.Rules) != "everything" || len(losses) != 3 ||
		len(Refusing(losses, []string{Filter, SoftDelete})) != 1 {
		t.Errorf("%+v %+v %v", back, losses, err)
	}
	again, losses, err := Invert(back)
	if err != nil || len(losses) > 0 || canonical(t, again.Rules) != canonical(t, d.Rules) {
		t.Errorf("there and back again: %+v %+v %v", again, losses, err)
	}
}

// TestHolds: rules of somebody's own have to lead back, and to map documents alike.
func TestHolds(t *testing.T) {
	back, _, err := Invert(Definition{Names: []Name{{"shop.a", "store.a"}}, Rules: transform.Config{
		Rename: []string{"shop=store"}, Fields: []string{`shop.a={"rename":{"b":"c","c":"b"}}`}}})
	if err != nil {
		t.Fatal(err)
	}
	fields := []string{`store.a={"rename":{"c":"b","b":"c"}}`}
	for want, rules := range map[string]transform.Config{
		"":                     {Include: []string{"store"}, Rename: []string{"store=shop"}, Fields: fields},
		"store.a to shop.a":    {Fields: fields},
		"rules for documents":  {Rename: []string{"store=shop"}},
		"have to bring store.": {Include: []string{"other"}, Rename: []string{"store=shop"}, Fields: fields},
	} {
		if err := Holds(rules, back); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestJobName(t *testing.T) {
	for of, want := range map[string]string{"shop": "shop-back", "shop-back": "shop-back2", "shop-back2": "shop-back3",
		"back": "back-back", "shop-backup": "shop-backup-back"} {
		if got := JobName(of); got != want {
			t.Errorf("%s: %s, want %s", of, got, want)
		}
	}
}

// TestThereAndBack: random rules map random documents there and back to what they were, or a
// rule is named as a loss.
func TestThereAndBack(t *testing.T) {
	g := gen{rand.New(rand.NewPCG(testseed.Of(t), 1))}
	inverted, same := 0, 0
	for range testseed.Rounds(t, 600) {
		rules := g.rules()
		rules.Secret = func(string) (string, error) { return "a key that is long enough for a mask", nil }
		there, err := transform.New(rules)
		if err != nil {
			continue
		}
		var names []Name
		for _, ns := range namespaces() {
			if there.Match(ns) {
				names = append(names, Name{ns, there.Target(ns)})
			}
		}
		if there.Collisions(namespaces()) != nil {
			continue
		}
		def, losses, err := Invert(Definition{Rules: rules, Names: names})
		if err != nil {
			continue
		}
		inverted++
		back, err := transform.New(def.Rules)
		if err != nil {
			t.Fatalf("%s: inverse %+v: %v", there, def.Rules, err)
		}
		for range 10 {
			ns, doc := pick(g, namespaces()...), kit.Raw(g.document())
			if !there.Match(ns) {
				continue
			}
			target := there.Target(ns)
			if !back.Match(target) || back.Target(target) != ns {
				t.Fatalf("%s: %s leads to %s, and %s back to %s", there, ns, target, back, back.Target(target))
			}
			if loses(losses, doc) {
				continue
			}
			out, err := there.Route(ns).Try(doc)
			if err == nil {
				out, err = back.Route(target).Try(out)
			}
			if err != nil || !bytes.Equal(out, doc) {
				t.Fatalf("%s, then %s\n of %s make %s of %s: %v; losses %+v", there, back, ns, out, doc, err, losses)
			}
			same++
		}
	}
	if inverted < 30 || same < 100 {
		t.Errorf("only %d rule sets were inverted, and %d documents compared", inverted, same)
	}
}

// loses reports a loss that concerns a document.
func loses(losses []Loss, doc bson.Raw) bool {
	return slices.ContainsFunc(losses, func(l Loss) bool {
		return !l.Note || slices.ContainsFunc(l.Fields, func(f string) bool { _, has := bsonraw.Field(doc, f); return has })
	})
}

// gen makes rules and documents.
type gen struct{ *rand.Rand }

func pick[T any](g gen, list ...T) T { return list[g.IntN(len(list))] }

func (g gen) one(in int) bool { return g.IntN(in) == 0 }

func namespaces() (all []string) {
	for _, db := range []string{"a", "b", "c"} {
		for _, coll := range []string{"x", "y", "z.w"} {
			all = append(all, db+"."+coll)
		}
	}
	return all
}

func (g gen) pattern() string {
	return pick(g, "a", "b", "c", "*", "?") + "." + pick(g, "x", "y", "*", "z*", "?")
}

func (g gen) rules() (r transform.Config) {
	for range g.IntN(3) {
		r.Include = append(r.Include, g.pattern())
	}
	if g.one(3) {
		r.Exclude = append(r.Exclude, g.pattern())
	}
	for range g.IntN(3) {
		if g.one(2) {
			r.Rename = append(r.Rename, pick(g, "a", "b", "c")+"="+pick(g, "a", "b", "d", "e"))
		} else {
			r.Rename = append(r.Rename, pick(g, namespaces()...)+"="+pick(g, append(namespaces(), "d.x", "d.v")...))
		}
	}
	for range g.IntN(3) {
		r.Fields = append(r.Fields, g.pattern()+"="+g.fields())
	}
	if g.one(6) {
		r.Filter = append(r.Filter, g.pattern()+`={"f":1}`)
	}
	return r
}

func (g gen) name() string { return pick(g, "f", "g", "h", "i") }

func (g gen) fields() string {
	var parts []string
	renames := map[string]string{}
	for range 1 + g.IntN(3) {
		if from, to := g.name(), pick(g, g.name(), "new"); from != to {
			renames[from] = to
		}
	}
	if len(renames) > 0 && !g.one(6) {
		var list []string
		for from, to := range renames {
			list = append(list, fmt.Sprintf("%q:%q", from, to))
		}
		slices.Sort(list)
		parts = append(parts, `"rename":{`+strings.Join(list, ",")+"}")
	}
	if g.one(3) {
		parts = append(parts, pick(g, `"drop":["g"]`, `"keep":["f","g","h"]`, `"set":{"n":1}`, `"mask":{"h":"null"}`,
			`"move":{"i":"m.i"}`, `"compute":{"n":"doc.f"}`, `"from":{"n":"f"}`,
			`"convert":{"f":{"to":"string","otherwise":"keep"}}`))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func (g gen) document() bson.D {
	doc := bson.D{{Key: "_id", Value: g.IntN(100)}}
	for range g.IntN(6) {
		doc = append(doc, bson.E{Key: pick(g, g.name(), "new", "o"), Value: pick[any](g, 1, "text", nil, 2.5,
			bson.D{{Key: "f", Value: 1}}, bson.A{1, bson.D{{Key: "g", Value: 2}}})})
	}
	return doc
}
