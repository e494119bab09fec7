package fields

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

func TestUpdate(t *testing.T) {
	for _, c := range []struct {
		rules, update string
		verdict       Verdict
		want          string
	}{
		{`{"drop": ["a"]}`, `{"$v": 2, "diff": {"u": {"b": 2}, "sc": {"u": {"a": 1}}}}`, Unchanged, ""},
		{`{"drop": ["a"]}`, `{"$v": 2, "diff": {"u": {"a": 2}}}`, Nothing, ""},
		{`{"drop": ["a", "c"]}`, `{"$v": 2, "diff": {"u": {"a": 2, "b": 1}, "sc": {"u": {"x": 1}}}}`, Translated,
			`{"$v": 2, "diff": {"u": {"b": 1}}}`},
		{`{"keep": ["a"]}`, `{"$v": 2, "diff": {"d": {"b": false}, "u": {"a": 2, "c": 1}}}`, Translated,
			`{"$v": 2, "diff": {"u": {"a": 2}}}`},
		{`{"keep": ["a"]}`, `{"$v": 2, "diff": {"u": {"a": 2}}}`, Unchanged, ""},
		{`{"keep": ["a.b"]}`, `{"$v": 2, "diff": {"sa": {"u": {"b": 2, "c": 1}}}}`, Translated,
			`{"$v": 2, "diff": {"sa": {"u": {"b": 2}}}}`},
		{`{"keep": ["a.b"]}`, `{"$v": 2, "diff": {"u": {"a": {"b": 2, "c": 1}}}}`, State, ""},
		{`{"keep": ["a.b"]}`, `{"$v": 2, "diff": {"u": {"a": 5}}}`, Translated, `{"$v": 2, "diff": {"d": {"a": false}}}`},
		{`{"rename": {"a": "b"}}`, `{"$v": 2, "diff": {"d": {"x": false}, "i": {"a": 2}, "sb": {"u": {"q": 1}}}}`, Translated,
			`{"$v": 2, "diff": {"d": {"x": false}, "i": {"b": 2}}}`},
		{`{"rename": {"a": "b"}}`, `{"$v": 2, "diff": {"sa": {"u": {"q": 1}}}}`, Translated,
			`{"$v": 2, "diff": {"sb": {"u": {"q": 1}}}}`},
		{`{"rename": {"a": "b"}}`, `{"$v": 2, "diff": {"d": {"a": false}}}`, Translated,
			`{"$v": 2, "diff": {"d": {"b": false}}}`},
		{`{"mask": {"a": {"last": 1}}}`, `{"$v": 2, "diff": {"u": {"a": "xyz"}}}`, Translated,
			`{"$v": 2, "diff": {"u": {"a": "**z"}}}`},
		{`{"mask": {"a": {"last": 1}}}`, `{"$v": 2, "diff": {"sa": {"u": {"q": 1}}}}`, State, ""},
		{`{"mask": {"a": "null"}}`, `{"$v": 2, "diff": {"sa": {"u": {"q": 1}}}}`, Nothing, ""},
		{`{"mask": {"a.b": {"last": 1}}}`,
			`{"$v": 2, "diff": {"sa": {"a": true, "l": 3, "u0": {"b": "xy"}, "s2": {"i": {"b": "z"}, "sc": {"u": {"b": "q"}}}}}}`, Translated,
			`{"$v": 2, "diff": {"sa": {"a": true, "l": 3, "u0": {"b": "*y"}, "s2": {"i": {"b": "*"}, "sc": {"u": {"b": "q"}}}}}}`},
		{`{"drop": ["a.b"]}`, `{"$v": 2, "diff": {"sa": {"a": true, "s2": {"u": {"b": "z"}}}}}`, Nothing, ""},
		{`{"drop": ["a.b"]}`, `{"$v": 2, "diff": {"u": {"c": 1}, "sa": {"a": true, "s2": {"u": {"b": "z"}}}}}`, Translated,
			`{"$v": 2, "diff": {"u": {"c": 1}}}`},
		{`{"convert": {"a": {"to": "int"}}}`, `{"$v": 2, "diff": {"u": {"a": "5"}}}`, Translated,
			`{"$v": 2, "diff": {"u": {"a": 5}}}`},
		{`{"convert": {"a": {"to": "int"}}}`, `{"$v": 2, "diff": {"u": {"a": 5}}}`, Unchanged, ""},
		{`{"convert": {"a": {"to": "int"}}}`, `{"$v": 2, "diff": {"u": {"a": "x"}}}`, State, ""},
		{`{"convert": {"a": {"to": "int", "otherwise": "drop"}}}`, `{"$v": 2, "diff": {"i": {"a": "x", "b": 1}}}`, Translated,
			`{"$v": 2, "diff": {"d": {"a": false}, "i": {"b": 1}}}`},
		{`{"convert": {"a": {"to": "int", "otherwise": "drop"}}}`, `{"$v": 2, "diff": {"u": {"a": 5}}}`, State, ""},
		{`{"convert": {"a": {"to": "int", "otherwise": "drop"}}}`, `{"$v": 2, "diff": {"i": {"a": "5"}}}`, Translated,
			`{"$v": 2, "diff": {"i": {"a": 5}}}`},
		{`{"move": {"a.b": "c"}}`, `{"$v": 2, "diff": {"sa": {"u": {"b": 1}}}}`, State, ""},
		{`{"move": {"a.b": "c"}}`, `{"$v": 2, "diff": {"sa": {"u": {"c": 1}}}}`, Unchanged, ""},
		{`{"move": {"a.b": "c"}}`, `{"$v": 2, "diff": {"sa": {"a": true, "u0": {"c": 1}}}}`, State, ""},
		{`{"from": {"c": "a.b"}}`, `{"$v": 1, "$set": {"a.0": 1}}`, State, ""}, // as a Misfit it may be elsewhere
		{`{"from": {"a": "b"}}`, `{"$v": 2, "diff": {"u": {"b": 1}}}`, State, ""},
		{`{"from": {"a": "b"}}`, `{"$v": 2, "diff": {"u": {"a": 1}}}`, Nothing, ""},
		{`{"set": {"a.b": 1}}`, `{"$v": 2, "diff": {"sa": {"u": {"c": 1}}}}`, State, ""},
		{`{"set": {"a": 1}}`, `{"$v": 2, "diff": {"sa": {"u": {"c": 1}}, "sb": {"u": {"c": 1}}}}`, Translated,
			`{"$v": 2, "diff": {"sb": {"u": {"c": 1}}}}`},
		{`{"compute": {"a": "doc.x.y + 1"}}`, `{"$v": 2, "diff": {"sx": {"u": {"c": 1}}}}`, Unchanged, ""},
		{`{"compute": {"a": "doc.x.y + 1"}}`, `{"$v": 2, "diff": {"sx": {"d": {"y": false}}}}`, State, ""},
		{`{"compute": {"a": "size(doc)"}}`, `{"$v": 2, "diff": {"u": {"z": 1}}}`, State, ""},
		{`{"from": {"w": "$operation"}}`, `{"$v": 2, "diff": {"d": {"z": false}, "sx": {"u": {"a": 1}}}}`, Translated,
			`{"$v": 2, "diff": {"d": {"z": false}, "u": {"w": "update"}, "sx": {"u": {"a": 1}}}}`},
		{`{"from": {"w": "$operation"}, "drop": ["z"]}`, `{"$v": 1, "$unset": {"z": true}}`, Translated,
			`{"$v": 1, "$set": {"w": "update"}}`},
		{`{"rename": {"a": "b"}}`, `{"$v": 1, "$set": {"a.x": 1, "b": 2, "c": 3}, "$unset": {"a.y": true}}`, Translated,
			`{"$v": 1, "$set": {"b.x": 1, "c": 3}, "$unset": {"b.y": true}}`},
		{`{"mask": {"a.b": {"last": 1}}}`, `{"$set": {"a.b": "xyz", "a.c": 1}}`, Translated,
			`{"$set": {"a.b": "**z", "a.c": 1}}`},
		{`{"mask": {"a.b": {"last": 1}}}`, `{"$set": {"a.3": "xyz"}}`, State, ""},
		{`{"mask": {"a.b": {"last": 1}}}`, `{"$set": {"a.3.b": "xyz"}}`, State, ""},
		{`{"mask": {"a.b": {"last": 1}}}`, `{"$set": {"a.3.c": "xyz"}}`, Unchanged, ""},
		{`{"drop": ["a.b"]}`, `{"$set": {"a.b": "xyz"}}`, State, ""}, // it may make an a
		{`{"drop": ["a.b"]}`, `{"$unset": {"a.b": true}}`, Unchanged, ""},
		{`{"drop": ["a"]}`, `{"$set": {"a.b": "xyz"}}`, Nothing, ""},
	} {
		u, err := parseDelta(parseDoc(t, c.update))
		if err != nil {
			t.Fatal(c.update, err)
		}
		out, verdict := mustParse(t, c.rules).Update(nil, u, Meta{Operation: "update"})
		if verdict != c.verdict || verdict == Translated && !bytes.Equal(out, parseDoc(t, c.want)) {
			t.Errorf("%s, %s: %s %s", c.rules, c.update, verdict, bson.Raw(out))
		}
	}
	if _, verdict := mustParse(t, `{"drop": ["a"]}`).Update(nil, delta.Delta{}, Meta{}); verdict == Unchanged {
		t.Error("what is no update passes")
	}
}

// TestLaw: whenever an update is translated, the translation makes of the mapped
// document the mapping of the updated one, byte for byte.
func TestLaw(t *testing.T) { testseed.Each(t, law) }

func law(t *testing.T, seed uint64) {
	g := newGen(seed)
	before := Meta{Namespace: "db.c", Operation: "insert", ClusterTime: bson.Timestamp{T: 1, I: 1}}
	after := Meta{Namespace: "db.c", Operation: "update", ClusterTime: bson.Timestamp{T: 2, I: 7}}
	counts := map[Verdict]int{}
	taken, total, forms := 0, 0, map[delta.Kind]int{}
	for range 3000 * testseed.Rounds(t, 2) {
		rules := kit.Raw(g.rules())
		m, err := Parse(rules, testSecrets)
		total++
		if err != nil {
			continue
		}
		taken++
		for range 12 {
			doc := g.document()
			source := kit.Raw(doc)
			was, err := m.Apply(nil, source, before)
			if err != nil {
				continue
			}
			o := kit.Raw(g.update(doc))
			u, err := parseDelta(o)
			if err != nil {
				continue
			}
			became, _, err := delta.Apply(nil, source, u)
			if err != nil {
				t.Fatalf("%s on %s: %v", o, source, err)
			}
			want, err := m.Apply(nil, became, after)
			if err != nil {
				continue
			}
			out, verdict := m.Update([]byte("xy"), u, after)
			counts[verdict]++
			if string(out[:2]) != "xy" || verdict != Translated && len(out) != 2 {
				t.Fatalf("%s, %s: dst is not kept", rules, o)
			}
			got := was
			switch verdict {
			case State:
				continue
			case Unchanged:
				got = applied(t, o, was)
			case Translated:
				forms[u.Kind()]++
				got = applied(t, out[2:], was)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("rules   %s\nbefore  %s\nmapped  %s\nupdate  %s\n%-7s %s\ngives   %s\nwant    %s", rules, source,
					bson.Raw(was), o, verdict, bson.Raw(out[2:]), bson.Raw(got), bson.Raw(want))
			}
		}
	}
	t.Logf("%d of %d rules taken; %v; translated %v", taken, total, counts, forms)
	if taken*3 < total || counts[Translated]*10 < taken || counts[Nothing]*100 < taken || counts[Unchanged]*10 < taken ||
		forms[delta.Diff]*4 < forms[delta.Modifiers] {
		t.Error("the generator finds too few of some")
	}
}

// TestCareful: an update that does not ask for the state leaves a document that cannot be
// mapped one that cannot be mapped, and one that can be mapped one that can be. Rules
// that say that they never fail do not.
func TestCareful(t *testing.T) { testseed.Each(t, careful) }

func careful(t *testing.T, seed uint64) {
	g := newGen(seed)
	meta := Meta{Namespace: "db.c", Operation: "update", ClusterTime: bson.Timestamp{T: 1, I: 1}}
	failed, mended, kept, careless := 0, 0, 0, 0
	for range 3000 * testseed.Rounds(t, 2) {
		rules := kit.Raw(g.rules())
		m, err := Parse(rules, testSecrets)
		if err != nil {
			continue
		}
		careful := m.Careful()
		for range 12 {
			doc := g.document()
			source := kit.Raw(doc)
			_, was := m.Apply(nil, source, meta)
			if was != nil && !m.MayFail() {
				t.Fatalf("%s on %s: %v, and they say that they do not fail", rules, source, was)
			}
			o := kit.Raw(g.update(doc))
			u, err := parseDelta(o)
			if err != nil {
				continue
			}
			became, _, err := delta.Apply(nil, source, u)
			if err != nil {
				t.Fatalf("%s on %s: %v", o, source, err)
			}
			_, is := m.Apply(nil, became, meta)
			_, verdict := careful.Update(nil, u, meta)
			_, plain := m.Update(nil, u, meta)
			switch changed := (was == nil) != (is == nil); {
			case changed && verdict != State:
				t.Fatalf("rules  %s\nbefore %s: %v\nupdate %s\nafter  %s: %v\n%s", rules, source, was, o, bson.Raw(became),
					is, verdict)
			case changed && is == nil:
				mended++
			case changed:
				failed++
			case verdict != State:
				kept++
			}
			if (was == nil) != (is == nil) && plain != State {
				careless++
			}
		}
	}
	t.Logf("%d updates failed, %d mended, %d need no state; %d pass without care", failed, mended, kept, careless)
	if failed < 100 || mended < 100 || kept < 1000 || careless < 10 {
		t.Error("the generator finds too few of some")
	}
}

func applied(t *testing.T, o, doc bson.Raw) bson.Raw {
	t.Helper()
	u, err := parseDelta(o)
	if err != nil {
		t.Fatalf("%s: %v", o, err)
	}
	out, _, err := delta.Apply(nil, doc, u)
	if err != nil {
		t.Fatalf("%s on %s: %v", o, doc, err)
	}
	return out
}

// TestTranslates: of rules that are said to translate every update, none asks for the
// document.
func TestTranslates(t *testing.T) { testseed.Each(t, translates) }

func translates(t *testing.T, seed uint64) {
	g := newGen(seed)
	simple := 0
	for range 3000 {
		names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "0", "9", "s", "u"}
		g.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		rules := bson.D{{Key: "rename", Value: d(names[0], names[1], names[2], "new")},
			{Key: "set", Value: d("tenant", 1, names[4], bson.D{})}}
		if g.One(2) {
			rules = append(rules, bson.E{Key: "drop", Value: bson.A{names[5], names[6]}})
		} else {
			rules = append(rules, bson.E{Key: "keep", Value: bson.A{names[0], names[2], names[3], names[7]}})
		}
		if g.One(4) {
			rules = g.rules()
		}
		m, err := Parse(kit.Raw(rules), testSecrets)
		if err != nil || !m.Translates() {
			continue
		}
		simple++
		for range 12 {
			doc := g.document()
			if u, err := parseDelta(kit.Raw(g.update(doc))); err == nil {
				if _, verdict := m.Update(nil, u, Meta{Namespace: "db.c"}); verdict == State {
					t.Fatalf("%s: the document is needed for %s", m, u.Raw())
				}
			}
		}
	}
	if simple < 500 {
		t.Errorf("%d rules are simple", simple)
	}
	for _, rules := range []string{`{"drop": ["a.b"]}`, `{"keep": ["a.b"]}`, `{"mask": {"a": {"last": 1}}}`,
		`{"from": {"a": "b"}}`, `{"from": {"a": "$clusterTime"}}`, `{"convert": {"a": {"to": "int"}}}`,
		`{"move": {"a": "b.c"}}`, `{"set": {"a.b": 1}}`, `{"compute": {"a": "doc.b"}}`} {
		if mustParse(t, rules).Translates() {
			t.Error(rules)
		}
	}
}
