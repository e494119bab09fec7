package stream_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/stream"
)

func marshal(t testing.TB, doc any) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestUpdateIsCheckedAgain: what took the place of a Doc that was checked is checked, and a
// second look gives what the first one gave.
func TestUpdateIsCheckedAgain(t *testing.T) {
	diff := func(section string) bson.Raw {
		return marshal(t, bson.D{{Key: "$v", Value: 2},
			{Key: "diff", Value: bson.D{{Key: section, Value: bson.D{{Key: "a", Value: 1}}}}}})
	}
	ev := stream.Event{Kind: stream.Update, Form: delta.Diff, Doc: diff("u")}
	first, err := ev.Update()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ev.Update()
	if err != nil || again.Kind() != first.Kind() || !again.Touches("a") || &again.Raw()[0] != &first.Raw()[0] {
		t.Errorf("%v, %v, %v", first, again, err)
	}
	copied := ev
	copied.Doc = diff("x")
	if _, err := copied.Update(); err == nil {
		t.Error("an update with an unknown section passes")
	}
	ev.Form, ev.Doc = delta.Modifiers, marshal(t, bson.D{{Key: "$set", Value: bson.D{{Key: "a..b", Value: 1}}}})
	if _, err := ev.Update(); err == nil {
		t.Error("an update of a path with an empty name passes")
	}
	ev.Doc = nil
	if _, err := ev.Update(); err == nil {
		t.Error("no update passes")
	}
}
