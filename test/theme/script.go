package theme

import (
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/history"
)

// draw makes parts of a trial.
type draw struct {
	*rand.Rand
	txns int
}

// one is true once in n times.
func (r *draw) one(n int) bool { return r.IntN(n) == 0 }

func pick[T any](r *draw, list ...T) T { return list[r.IntN(len(list))] }

func doc(pairs ...any) bson.D { return history.D(pairs...) }

func arr(values ...any) bson.A { return history.A(values...) }

func raw(d bson.D) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		panic(err) // of what a theme made
	}
	return b
}

// src is a command of the source.
func src(cmd ...any) Event { return on(Source, "", doc(cmd...)) }

// dst is a command of a foreign writer on the target.
func dst(cmd ...any) Event { return on(Target, "", doc(cmd...)) }

func on(do Do, db string, cmd bson.D) Event {
	return Event{Do: do, Step: &history.Step{DB: db, Cmd: raw(cmd)}}
}

// in puts events into another database of the trial.
func in(db string, events ...Event) []Event {
	for i := range events {
		events[i].Step.DB = db
	}
	return events
}

func insert(coll string, docs ...any) Event { return src("insert", coll, "documents", bson.A(docs)) }

func update(coll string, q, u any, more ...any) Event {
	return src("update", coll, "updates", arr(append(doc("q", q, "u", u), doc(more...)...)))
}

func remove(coll string, q any) Event {
	return src("delete", coll, "deletes", arr(doc("q", q, "limit", 1)))
}

func fill(coll string, n, pad int) Event {
	return Event{Do: Source, Step: &history.Step{Do: history.Fill, Cmd: raw(doc("fill", coll, "from", 0, "to", n, "pad", pad))}}
}

func rename(from, to string, dropTarget bool) Event {
	return src("renameCollection", from, "to", to, "dropTarget", dropTarget)
}

// txn puts events into one transaction.
func (r *draw) txn(end history.Action, events ...Event) []Event {
	r.txns++
	events = append(events, Event{Do: Source, Step: &history.Step{Do: end}})
	for i := range events {
		events[i].Step.Txn = r.txns
	}
	return events
}

func start(args ...string) Event { return Event{Do: Start, Args: args} }

func await(phase string) Event { return Event{Do: Await, Phase: phase} }

func throttle(docs int64) Event { return Event{Do: Throttle, Docs: docs} }

func sleep(ms int) Event { return Event{Do: Sleep, Wait: time.Duration(ms) * time.Millisecond} }

func (r *draw) list(n int, step func() []Event) (out []Event) {
	for len(out) < n {
		out = append(out, step()...)
	}
	return out
}

// life is how the job fares among the steps of a trial.
type life struct {
	r                     *draw
	running, paused, slow bool
	starts                int
}

// most starts of a job in a trial.
const mostStarts = 4

// among puts a job's life among steps, in one of two ways.
func (r *draw) among(steps []Event) []Event {
	if r.one(2) {
		return r.bursts(steps)
	}
	return r.anywhere(steps)
}

// bursts kills a job that follows right after a few steps, before it can save
// its position, lets a few more happen, and starts it again.
func (r *draw) bursts(steps []Event) []Event {
	begin := r.IntN(1 + len(steps)/3)
	out := following(steps[:begin])
	rest := steps[begin:]
	for n := 0; len(rest) > 0 && n < mostStarts; n++ {
		live, down := min(len(rest), 1+r.IntN(8)), 0
		out = append(out, rest[:live]...)
		rest = rest[live:]
		down = min(len(rest), r.IntN(5))
		out = append(out, sleep(pick(r, 10, 40, 100, 200)), Event{Do: Kill})
		out = append(out, rest[:down]...)
		rest = rest[down:]
		out = append(out, start(), await("following"))
		if r.one(2) {
			out = append(out, Event{Do: CaughtUp})
		}
	}
	return append(out, rest...)
}

// anywhere begins a job anywhere among the steps: it is held back while it
// copies or follows, is paused, ends in any way and begins again. What it has
// written when it ends depends on the moment, so there are short waits.
func (r *draw) anywhere(steps []Event) []Event {
	l := &life{r: r}
	var out []Event
	begin := r.IntN(1 + len(steps)/2)
	out = append(out, steps[:begin]...)
	out = append(out, l.start()...)
	for _, s := range steps[begin:] {
		if r.one(4) {
			out = append(out, l.next()...)
		}
		out = append(out, s)
	}
	return out
}

func (l *life) start() []Event {
	l.running, l.slow = true, false
	l.starts++
	r := l.r
	var out []Event
	if r.one(2) {
		l.slow = true
		out = []Event{start("--max-rate-docs", pick(r, "1", "20")), await("copying"), sleep(pick(r, 0, 0, 50, 300))}
	} else {
		out = []Event{start(), await(pick(r, "copying", "overlap", "following", "following"))}
	}
	if l.paused { // a pause outlives the process
		l.paused = false
		out = append(out, Event{Do: Resume})
	}
	return out
}

// next is something that befalls the job.
func (l *life) next() []Event {
	r := l.r
	if !l.running {
		if l.starts >= mostStarts || !r.one(2) {
			return nil
		}
		return l.start()
	}
	switch n := r.IntN(10); {
	case n < 3:
		l.running = false
		return []Event{sleep(pick(r, 0, 30, 100, 300)), {Do: Kill}}
	case n == 3:
		l.running = false
		return []Event{{Do: Stop}}
	case n == 4 && l.paused:
		l.paused = false
		return []Event{{Do: Resume}}
	case n == 4:
		l.paused = true
		return []Event{{Do: Pause}}
	case l.slow:
		l.slow = false
		return []Event{throttle(0)}
	case n == 5 && !l.paused:
		l.slow = true
		return []Event{await("following"), throttle(1)}
	case n == 6 && !l.paused:
		return []Event{{Do: CaughtUp}}
	case !l.paused:
		return []Event{await("following"), sleep(r.IntN(60)), {Do: CaughtUp}}
	}
	return nil
}

// following begins with a job that follows and has caught up.
func following(setup []Event, args ...string) []Event {
	return append(append([]Event{}, setup...), start(args...), await("following"), Event{Do: CaughtUp})
}
