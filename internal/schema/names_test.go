package schema

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// TestRenamedByItsNewUUID: a shard tells of a rename of what has moved to it, by the UUID
// that the collection got there.
func TestRenamedByItsNewUUID(t *testing.T) {
	rules, err := transform.New(transform.Config{})
	if err != nil {
		t.Fatal(err)
	}
	uuid := func(n byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)} }
	names := NewNames([]Name{{NS: "d.u", Target: "d.u", Type: TypeCollection, UUID: uuid(1)}})
	names.Change(names.After(stream.Change{Kind: stream.ChangeRename, NS: "d.u", To: "d.v", UUID: uuid(2)}, rules))
	if one, ok := names.Source("d.v"); !ok || !one.UUID.Equal(uuid(2)) {
		t.Errorf("%+v", one)
	}
}

// TestLeftByItsRename: whether the target goes on having a collection under the name of
// before depends on what it had there when the rename was left out.
func TestLeftByItsRename(t *testing.T) {
	rules, err := transform.New(transform.Config{Skip: []string{"*.*=rename"}})
	if err != nil {
		t.Fatal(err)
	}
	uuid := func(n byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)} }
	names := NewNames([]Name{{NS: "d.a", Target: "d.a", Type: TypeCollection, UUID: uuid(1),
		Presence: Presence{Copied: mongo.OpTime{TS: bson.Timestamp{T: 7}}}}})
	for _, step := range []struct {
		from, to string
		left     bool
	}{
		{"d.a", "e.a", true},
		{"e.a", "f.a", false}, // the target has nothing under e.a
	} {
		rename := stream.Change{Kind: stream.ChangeRename, NS: step.from, To: step.to, UUID: uuid(1)}
		for _, what := range []string{"first", "once more after a crash"} {
			names.Change(names.After(rename, rules))
			if one, ok := names.Source(step.to); !ok || !one.Gone || one.Left != step.left || !names.Missing(step.to) {
				t.Errorf("%s to %s, %s: %+v", step.from, step.to, what, one)
			}
		}
	}
}

// TestMissing: what was left out stays so under the next name, which no rule is about.
func TestMissing(t *testing.T) {
	rules, err := transform.New(transform.Config{Skip: []string{"d.*=rename"}})
	if err != nil {
		t.Fatal(err)
	}
	uuid := bson.Binary{Subtype: 4, Data: make([]byte, 16)}
	names := NewNames([]Name{{NS: "d.a", Target: "d.a", Type: TypeCollection, UUID: uuid,
		Presence: Presence{Copied: mongo.OpTime{TS: bson.Timestamp{T: 7}}}}})
	for _, step := range [][2]string{{"d.a", "e.a"}, {"e.a", "f.a"}} {
		names.Change(names.After(stream.Change{Kind: stream.ChangeRename, NS: step[0], To: step[1], UUID: uuid}, rules))
		if !names.Missing(step[1]) {
			one, _ := names.Source(step[1])
			t.Errorf("%s is not missing: %+v", step[1], one)
		}
	}
}

// TestRetention: where the changes of a collection go whose rename is skipped. Each step is
// done once more, as after a crash.
func TestRetention(t *testing.T) {
	rules, err := transform.New(transform.Config{Include: []string{"d.*", "e.*"}, Exclude: []string{"d.out"},
		Skip: []string{"d.a=rename", "d.b=rename", "d.left=drop,rename"}})
	if err != nil {
		t.Fatal(err)
	}
	uuid := func(n byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)} }
	rename := func(from, to string, n byte) stream.Change {
		return stream.Change{Kind: stream.ChangeRename, NS: from, To: to, UUID: uuid(n)}
	}
	command := func(c mongo.Command, ch stream.Change) stream.Change {
		ch.Command = c
		return ch
	}
	skipped := rename("d.a", "d.b", 1)
	anew := stream.Change{Kind: stream.ChangeCreate, NS: "d.a", UUID: uuid(2)}
	drop := func(ns string) stream.Change { return stream.Change{Kind: stream.ChangeDrop, NS: ns} }
	for name, c := range map[string]struct {
		changes []stream.Change
		want    string
	}{
		"skipped":                {[]stream.Change{skipped}, "d.b=d.a"},
		"applied":                {[]stream.Change{rename("d.x", "d.y", 3)}, ""},
		"twice":                  {[]stream.Change{skipped, rename("d.b", "d.c", 1)}, "d.c=d.a"},
		"out of the rules":       {[]stream.Change{rename("d.a", "d.out", 1)}, "d.out=d.a"},
		"out, and back in":       {[]stream.Change{rename("d.a", "d.out", 1), rename("d.out", "d.b", 1)}, "d.b=d.a"},
		"back":                   {[]stream.Change{skipped, rename("d.b", "d.a", 1)}, "d.a=d.a"},
		"to another database":    {[]stream.Change{command(mongo.CommandMove, rename("d.a", "e.a", 1))}, ""},
		"dropped":                {[]stream.Change{skipped, drop("d.b")}, ""},
		"its database":           {[]stream.Change{skipped, {Kind: stream.ChangeDropDatabase, NS: "d"}}, ""},
		"the name made anew":     {[]stream.Change{skipped, anew}, "d.b=d.a"},
		"and dropped":            {[]stream.Change{skipped, anew, drop("d.a")}, ""},
		"and its drop left out":  {[]stream.Change{rename("d.left", "d.b", 4), drop("d.left")}, "d.b=d.left"},
		"joined to another":      {[]stream.Change{rename("d.x", "d.b", 3), drop("d.b"), skipped}, "d.b=d.a"},
		"$out onto the new name": {[]stream.Change{skipped, command(mongo.CommandOut, rename("d.tmp", "d.b", 9))}, ""},
		"$out onto the old name": {[]stream.Change{skipped, anew, command(mongo.CommandOut, rename("d.tmp", "d.a", 9))}, ""},
		"another one joined":     {[]stream.Change{rename("d.p", "d.b", 5), rename("d.x", "d.p", 3)}, "d.b=d.p mixed"},
		"renamed as another": {[]stream.Change{rename("d.p", "d.b", 5), {Kind: stream.ChangeCreate, NS: "d.p"},
			rename("d.p", "d.q", 6)}, "d.b=d.q mixed"},
		"resharded": {[]stream.Change{skipped, command(mongo.CommandReshard, rename("d.tmp", "d.b", 9))}, "d.b=d.a"},
		"converted": {[]stream.Change{skipped, command(mongo.CommandCapped, rename("d.tmp", "d.b", 9))}, ""},
	} {
		names := NewNames([]Name{{NS: "d.a", Target: "d.a", Type: TypeCollection, UUID: uuid(1)},
			{NS: "d.x", Target: "d.x", Type: TypeCollection, UUID: uuid(3)},
			{NS: "d.left", Target: "d.left", Type: TypeCollection, UUID: uuid(4)},
			{NS: "d.p", Target: "d.p", Type: TypeCollection, UUID: uuid(5)},
			{NS: "d.tmp", Target: "d.tmp", Type: TypeCollection, UUID: uuid(9)}})
		for _, ch := range c.changes {
			for range 2 {
				names.Change(names.After(ch, rules))
			}
		}
		var got []string
		for _, one := range names.Retentions("") {
			got = append(got, one.NS+"="+one.Was+map[bool]string{true: " mixed"}[one.Mixed])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		names.Change(names.EndRetained())
		if _, there := names.Source("d.out"); there || len(names.Retentions("")) > 0 {
			t.Errorf("%s: %+v is left of it", name, names.All())
		}
	}
}
