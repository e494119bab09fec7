package job_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// testOtherFormat refuses a job that another version of millrace stored, and leaves it as it is.
func testOtherFormat(t *testing.T, s servers) {
	insert(t, s.srcDB, "format3", 5)
	spec := s.spec("format3")
	spec.Job = "format3"
	if err := open(t, spec).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	jobs := s.targetC.Database("millrace").Collection("jobs")
	defer func() { // others could not know what it has of the target
		if _, err := jobs.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "format3"}}); err != nil {
			t.Error(err)
		}
	}()
	for _, version := range []int{3, 5} {
		set := bson.D{{Key: "phase", Value: "following"}, {Key: "version", Value: version}}
		if _, err := jobs.UpdateByID(t.Context(), "format3", bson.D{{Key: "$set", Value: set}}); err != nil {
			t.Fatal(err)
		}
		err := open(t, spec).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "another version of millrace") {
			t.Errorf("format %d: %v", version, err)
		}
		if n, err := jobs.CountDocuments(t.Context(), append(bson.D{{Key: "_id", Value: "format3"}}, set...)); n != 1 {
			t.Errorf("format %d: the job was changed: %v", version, err)
		}
	}
}
