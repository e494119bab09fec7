package fields

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/delta"
)

// TestLaw: whenever an update is translated, the translation makes of the mapped
// document the mapping of the updated one, byte for byte.
func TestLaw(t *testing.T) {
	g := newGen(seedOf(t))
	before := Meta{Namespace: "db.c", Operation: "insert", ClusterTime: bson.Timestamp{T: 1, I: 1}}
	after := Meta{Namespace: "db.c", Operation: "update", ClusterTime: bson.Timestamp{T: 2, I: 7}}
	counts := map[Verdict]int{}
	taken, total, forms := 0, 0, map[delta.Kind]int{}
	for range 3000 * roundsOf(t, 2) {
		rules := raw(t, g.rules())
		m, err := Parse(rules, testSecrets)
		total++
		if err != nil {
			continue
		}
		taken++
		for range 12 {
			doc := g.document()
			source := raw(t, doc)
			was, err := m.Apply(nil, source, before)
			if err != nil {
				continue
			}
			o := raw(t, g.update(doc))
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
				t.Fatalf("rules   %s\nbefore  %s\nmapped  %s\nupdate  %s\n%-7s %s\ngives   %s\nwant    %s", rules, source, bson.Raw(was), o, verdict, bson.Raw(out[2:]), bson.Raw(got), bson.Raw(want))
			}
		}
	}
	t.Logf("%d of %d rules taken; %v; translated %v", taken, total, counts, forms)
	if taken*3 < total || counts[Translated]*10 < taken || counts[Nothing]*100 < taken || counts[Unchanged]*10 < taken || forms[delta.Diff]*4 < forms[delta.Modifiers] {
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
