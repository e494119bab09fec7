package transform

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// TestSkips: the first rule that matches counts, also of the buckets of a time series.
func TestSkips(t *testing.T) {
	s := mustNew(t, Config{Skip: []string{"a.c=none", "a.*=delete,drop", `b.x\=y=insert`}})
	for ns, want := range map[string]string{"a.c": "none", "a.d": "delete,drop", "a.system.buckets.d": "delete,drop",
		"b.x=y": "insert", "c.c": "none"} {
		if got := s.Route(ns).Skips.String(); got != want {
			t.Errorf("%s: %s, want %s", ns, got, want)
		}
	}
	if got, want := s.String(), `skip a.c=none; skip a.*=delete,drop; skip b.x\=y=insert`; got != want {
		t.Errorf("canonical: %s", got)
	}
	for text, want := range map[string]string{"a.b": "the = after", "=delete": "the pattern",
		"a.b=remove": "there are insert"} {
		if _, err := New(Config{Skip: []string{text}}); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "; write ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestStageSkips: what passes of each kind of event under each rule, and what is counted.
func TestStageSkips(t *testing.T) {
	for ops, want := range map[string]string{
		"delete":                "put update replace put upsert",
		"insert":                "update replace delete",
		"update":                "insert replace delete put",
		"replace":               "insert update delete upsert",
		"drop,rename":           "put update replace delete put upsert",
		"create,collMod":        "insert update replace delete put upsert",
		"insert,update,replace": "delete",
		"ttl":                   "put update replace delete put upsert",
	} {
		rules := mustNew(t, Config{Skip: []string{"a.*=" + ops}})
		counters := NewCounters(rules)
		b := &stream.Batch{}
		for _, k := range []stream.Kind{stream.Insert, stream.Update, stream.Replace, stream.Delete, stream.Put,
			stream.Upsert} {
			b.Events = append(b.Events, stream.Event{Kind: k, NS: "a.c"})
		}
		NewStage(rules, stream.Position{}, counters, nil).Batch(t.Context(), b)
		var got []string
		for _, ev := range b.Events {
			got = append(got, ev.Kind.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s passed, want %s", ops, got, want)
		}
		skipped := 0
		for _, n := range counters.Skips()[0].Skipped {
			skipped += int(n)
		}
		if skipped != 6-len(got) {
			t.Errorf("%s: counted %v", ops, counters.Skips())
		}
	}
	if got := NewCounters(mustNew(t, Config{Filter: []string{`a.c={"b":1}`}})).Skips(); len(got) != 0 {
		t.Error(got)
	}
}

// copyEnd is the end of the copy of all collections.
type copyEnd mongo.OpTime

func (c copyEnd) CopyEnd(string) mongo.OpTime { return mongo.OpTime(c) }

// TestSkipsWhileCopied: the copy may have read what a replacement left. Where updates pass, it
// passes, too: else an update of the document before it makes one that never was.
func TestSkipsWhileCopied(t *testing.T) {
	at := func(second uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: second}} }
	for ops, want := range map[string]string{
		"replace":        "update:1 replace:1 update:2",
		"update,replace": "",
		"update":         "replace:1 replace:2",
	} {
		st := NewStage(mustNew(t, Config{Skip: []string{"a.*=" + ops}}), stream.Position{}, nil, nil)
		st.Copies(copyEnd(at(1)))
		b := &stream.Batch{}
		for second := range uint32(2) {
			for _, k := range []stream.Kind{stream.Update, stream.Replace} {
				b.Events = append(b.Events, stream.Event{Kind: k, NS: "a.c", At: at(second + 1)})
			}
		}
		if _, err := st.Batch(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ev := range b.Events {
			got = append(got, fmt.Sprintf("%s:%d", ev.Kind, ev.At.TS.T))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s passed, want %s", ops, got, want)
		}
	}
}

// TestComesByRename: a collection that a user's rename brings in is copied, so replacements that
// were read before pass. What a server renames at the end of a command brings nothing in.
func TestComesByRename(t *testing.T) {
	at := mongo.OpTime{TS: bson.Timestamp{T: 9}}
	for _, c := range []struct {
		from    string
		command mongo.Command
		passes  bool
	}{
		{"b.c", 0, true},
		{"b.c", mongo.CommandMove, true},
		{"a.system.resharding.x", mongo.CommandReshard, false},
		{"a.d", 0, false},
	} {
		st := NewStage(mustNew(t, Config{Include: []string{"a.*"}, Skip: []string{"a.*=replace"}}), stream.Position{},
			nil, nil)
		st.Copies(copyEnd{})
		b := &stream.Batch{Events: []stream.Event{
			{Kind: stream.SchemaChange, NS: c.from, At: at,
				Change: &stream.Change{Kind: stream.ChangeRename, NS: c.from, To: "a.c", Command: c.command}},
			{Kind: stream.Replace, NS: "a.c", At: at},
		}}
		if _, err := st.Batch(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if passes := len(b.Events) == 2; passes != c.passes {
			t.Errorf("after a rename of %s by %d the replacement passes: %v", c.from, c.command, passes)
		}
	}
}

// TestRulesSayWhatToWrite: an error about the form of a rule has an example of its kind.
func TestRulesSayWhatToWrite(t *testing.T) {
	for text, c := range map[string]Config{
		`write 'db.coll={"drop": ["card"]}'`: {Fields: []string{"a.b"}},
		`write 'db.coll={"status": "open"}'`: {Filter: []string{"a.b"}},
		"write 'db.coll=delete,drop'":        {Skip: []string{"a.b=remove"}},
		"write 'db.coll=deletedAt'":          {SoftDelete: []string{"=x"}},
		`the rules are no JSON`:              {Fields: []string{"a.b={"}},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), text) || strings.Count(err.Error(), "write '") > 1 {
			t.Errorf("%+v: %v, want %s", c, err, text)
		}
	}
}
