package trial

import (
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
)

// Theme makes trials that are aimed at one way to lose data.
type Theme struct {
	Name string
	Make func(r *rand.Rand) Trial
}

// New makes the theme's trial of a seed.
func (t Theme) New(seed uint64) Trial {
	tr := t.Make(rand.New(rand.NewPCG(seed, 0x747269616c)))
	tr.Theme, tr.Seed = t.Name, seed
	return tr
}

// D makes a document of names and values in turn.
func D(pairs ...any) bson.D { return history.D(pairs...) }

// A makes an array.
func A(values ...any) bson.A { return history.A(values...) }

// Do is a command on the source.
func Do(db string, cmd bson.D) Event { return Event{Do: Run, DB: db, Cmd: kit.Raw(cmd)} }

// Foreign is a command of somebody else on the target.
func Foreign(db string, cmd bson.D) Event {
	return Event{Do: Run, On: Target, DB: db, Cmd: kit.Raw(cmd)}
}

// Filled inserts documents _id from to, without to, each with so many bytes more
// than a few.
func Filled(db, coll string, from, to, pad int) Event {
	return Event{Do: Fill, DB: db, Cmd: kit.Raw(history.Filling{Coll: coll, From: from, To: to, Pad: pad})}
}

// Begin starts the first process with points and options.
func Begin(points string, args ...string) Event { return Event{Do: Start, Points: points, Args: args} }

// For waits for so long.
func For(d time.Duration) Event { return Event{Do: Pause, For: d} }

// Until waits for something; on is the side, where that matters.
func Until(on, want string) Event { return Event{Do: Await, On: on, Want: want} }

// Together gives events a number by which they are left out together.
func Together(n int, events ...Event) []Event {
	for i := range events {
		events[i].With = n
	}
	return events
}

// between is a random duration.
func between(r *rand.Rand, lo, hi time.Duration) time.Duration {
	return (lo + time.Duration(r.Int64N(int64(hi-lo)+1))).Round(time.Millisecond)
}

// pick is one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }
