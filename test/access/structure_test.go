package access

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test"
)

// structure is a job that copies no documents.
func structure(s job.Spec) job.Spec {
	s.Mode = job.ModeStructure
	return s
}

// TestStructureWithLeastPrivileges makes the structure of everything with the documented
// roles, which may read no document of the source: first anew, then instead of what is
// there, then beside it.
func TestStructureWithLeastPrivileges(t *testing.T) {
	source := sourceSide().userWith(t, "structureReader", documented(t, "millraceStructureSource"))
	target := targetSide().userWith(t, "structureWriter", documented(t, "millraceStructureTarget"))
	structures(t, source, target)
	t.Run("built-in roles", func(t *testing.T) {
		structures(t, sourceSide().user(t, "reader", sourceRoles()), targetSide().user(t, "writer", targetRoles()))
	})
}

// structures runs one job after the other between two users.
func structures(t *testing.T, source, target string) {
	t.Helper()
	load(t)
	for _, existing := range []job.OnExisting{job.ExistingFail, job.ExistingDrop, job.ExistingMerge} {
		var log strings.Builder
		s := structure(spec(source, target, &log))
		s.OnExisting, s.Restart = existing, true
		if existing == job.ExistingDrop { // which servers refuse
			s.Rules.Exclude = append(s.Rules.Exclude, "*.system.js")
		}
		j, err := job.Open(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if err = j.Run(t.Context()); err != nil {
			t.Fatalf("%s: %v (hint: %s)\n%s", existing, err, mongo.HintOf(err), log.String())
		}
		if st := j.Status(); len(st.Differences) > 0 {
			t.Errorf("%s: %v", existing, st.Differences)
		}
		j.Close()
		sameStructure(t)
	}
	report, err := verify.Clusters(t.Context(),
		verify.Spec{Source: source, Target: target, Rules: rules(), Options: verify.Options{StructureOnly: true}})
	if err != nil || !report.Same {
		t.Errorf("%+v %v", report, err)
	}
}

// sameStructure wants the target to have all that a job was to keep, but no document.
func sameStructure(t *testing.T) {
	t.Helper()
	none, err := bson.Marshal(bson.D{{Key: "$nor", Value: bson.A{bson.D{}}}})
	if err != nil {
		t.Fatal(err)
	}
	diffs, err := test.Compare(t.Context(), shared.sourceDB, shared.targetDB, test.CompareOptions{
		Source: func(ns string) bool { return strings.HasPrefix(ns, "acc") && !strings.HasPrefix(ns, "acc.out") },
		Target: func(ns string) bool { return !strings.HasPrefix(ns, "other.") },
		Filter: func(string) bson.Raw { return none },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range diffs {
		t.Error(d)
	}
}
