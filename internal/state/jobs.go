package state

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// Listed is a job as List finds it.
type Listed struct {
	Job
	Err error // why it cannot be read: then it has its ID alone
}

// List reads all jobs on a target, by name, from the primary. It is for display.
func List(ctx context.Context, c *mongo.Cluster) ([]Listed, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	jobs := c.Client.Database(mongo.StateDB, options.Database().SetReadPreference(readpref.Primary())).Collection("jobs")
	raws, err := mongo.ReadAll[bson.Raw](ctx, "list the jobs of %s", c.Address())(
		jobs.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})))
	if err != nil {
		return nil, err
	}
	out := make([]Listed, len(raws))
	for i, raw := range raws {
		out[i].Job, out[i].Err = readJob(raw)
	}
	return out, nil
}

// Life says whether a process runs a job.
type Life string

const (
	Running    Life = "running"    // its owner has given a sign of life
	Silent     Life = "silent"     // its owner may live, and has given none for some seconds
	Stopped    Life = "stopped"    // nobody owns it, or its owner is dead
	Finalized  Life = "finalized"  // stopped, and nothing is left to do
	Unreadable Life = "unreadable" // nothing is known
)

func (j *Listed) unowned() Life {
	switch {
	case j.Err != nil:
		return Unreadable
	case j.Phase == PhaseFinalized:
		return Finalized
	}
	return Stopped
}

const listenFor = 2*BeatEvery + time.Second

// Lives returns by name which jobs run. It waits for the next sign of life of each, at most some
// seconds.
func Lives(ctx context.Context, c *mongo.Cluster, jobs []Listed) (map[string]Life, error) {
	lives, asked := map[string]Life{}, map[string]Listed{}
	for _, j := range jobs {
		if lives[j.ID] = j.unowned(); j.Owner != (Owner{}) && !j.Owner.dead() {
			lives[j.ID], asked[j.ID] = Silent, j
		}
	}
	for began := time.Now(); len(asked) > 0 && time.Since(began) < listenFor; {
		if err := pace.Pause(ctx, 250*time.Millisecond); err != nil {
			return nil, err
		}
		now, err := List(ctx, c)
		if err != nil {
			return nil, err
		}
		for _, j := range now {
			was, ok := asked[j.ID]
			if !ok || j.Owner == was.Owner && j.Beat == was.Beat && j.Fence == was.Fence {
				continue
			}
			delete(asked, j.ID)
			if lives[j.ID] = j.unowned(); j.Owner != (Owner{}) {
				lives[j.ID] = Running
			}
		}
	}
	return lives, nil
}

// Kept counts the documents of a job in each collection that Clear empties.
func (s *Mongo) Kept(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for _, coll := range cleared() {
		n, err := s.db.Collection(coll).CountDocuments(ctx, bson.D{mongo.OfJob(s.o.Job)})
		if err != nil {
			return nil, fmt.Errorf("count %s of job %s: %w", coll, s.o.Job, err)
		}
		out[coll] = n
	}
	return out, nil
}

// Drop removes the document of the job, after everything else of it.
func (s *Mongo) Drop(ctx context.Context) error {
	_, err := s.c.DeleteState(ctx, "jobs", "majority", s.attempt())
	return mongo.Wrap(err, "drop job %s", s.o.Job)
}
