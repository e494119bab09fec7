package job_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// testFormat2 continues a job as format 2 left it: the position's readFrom
// stood in the place of mark.
func testFormat2(t *testing.T, s servers) {
	insert(t, s.srcDB, "format2", 5)
	spec := s.spec("format2")
	spec.Job = "format2"
	if err := open(t, spec).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	jobs := s.targetC.Database("millrace").Collection("jobs")
	if _, err := jobs.UpdateByID(t.Context(), "format2", mongo.Pipeline{
		{{Key: "$set", Value: bson.D{{Key: "phase", Value: "following"}, {Key: "version", Value: 2},
			{Key: "readFrom", Value: "$applied"}}}},
		{{Key: "$unset", Value: "mark"}},
	}); err != nil {
		t.Fatal(err)
	}
	insert(t, s.srcDB, "format2", 7)
	if err := open(t, spec).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s.targetC, "format2"); n != 12 {
		t.Errorf("%d documents, want 12", n)
	}
	var now struct {
		Mark    string `bson:"mark"`
		Version int    `bson:"version"`
	}
	if err := jobs.FindOne(t.Context(), bson.D{{Key: "_id", Value: "format2"}}).Decode(&now); err != nil ||
		now.Mark == "" || now.Version < 3 {
		t.Errorf("continued as %+v, %v", now, err)
	}
}
