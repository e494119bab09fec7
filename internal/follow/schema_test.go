package follow

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// TestCopied: what was read later moves the consistent position on. It says nothing of
// collections that were copied before, or that others have filled.
func TestCopied(t *testing.T) {
	at := func(n uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: n}, Term: 1} }
	names := schema.NewNames([]schema.Name{{NS: "d.c", Target: "d.c"}, {NS: "d.late", Target: "d.late",
		Presence: schema.Presence{Copied: at(20)}}})
	rename := func(ns string, n uint32) *stream.Event {
		return &stream.Event{At: at(n), Change: &stream.Change{Kind: stream.ChangeRename, NS: ns, To: ns + "2"}}
	}
	for _, c := range []struct {
		what   string
		job    state.Job
		ev     *stream.Event
		cut    bool
		filled bool
	}{
		{"during the copy", state.Job{Copied: at(10), Consistent: at(20)}, rename("d.c", 10), true, false},
		{"after it", state.Job{Copied: at(10), Consistent: at(20)}, rename("d.c", 11), false, false},
		{"of a collection that was copied later", state.Job{Copied: at(10), Consistent: at(20)}, rename("d.late", 20), true,
			false},
		{"after that", state.Job{Copied: at(10), Consistent: at(30)}, rename("d.late", 21), false, false},
		{"filled by others", state.Job{Mode: state.ModeIncremental, Copied: at(10), Consistent: at(20)}, rename("d.c", 10),
			true, true},
		{"after what others filled", state.Job{Mode: state.ModeIncremental, Copied: at(10), Consistent: at(20)},
			rename("d.c", 11), false, false},
	} {
		f := &follower{job: c.job, Options: Options{Source: &Source{Names: names}}}
		if cut, filled := f.mayBeCut(c.ev), f.filledAhead(c.ev.At); cut != c.cut || filled != c.filled {
			t.Errorf("%s: cut off %t, filled %t", c.what, cut, filled)
		}
	}
}
