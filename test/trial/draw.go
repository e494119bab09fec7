package trial

import (
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
)

// draw makes parts of a trial around documents: few of them, few _ids, and a job
// that is held back, killed and started again in between.
type draw struct {
	*rand.Rand
	txns int
}

// one is true once in n times.
func (r *draw) one(n int) bool { return r.IntN(n) == 0 }

func choose[T any](r *draw, list ...T) T { return list[r.IntN(len(list))] }

// around are the flags of a job of all databases of a trial.
func around(more ...string) []string {
	return append([]string{"--include", Database, "--include", Database + "-*"}, more...)
}

// src is a command of the source.
func src(cmd ...any) Event { return Event{Do: Step, Step: &history.Step{Cmd: kit.Raw(D(cmd...))}} }

// dst is a command of a foreign writer on the target.
func dst(cmd ...any) Event {
	return Event{Do: Step, On: Target, Step: &history.Step{Cmd: kit.Raw(D(cmd...))}}
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
	return src("update", coll, "updates", A(append(D("q", q, "u", u), D(more...)...)))
}

func remove(coll string, q any) Event {
	return src("delete", coll, "deletes", A(D("q", q, "limit", 1)))
}

func filled(coll string, n, pad int) Event {
	return Event{Do: Step, Step: &history.Step{Do: history.Fill,
		Cmd: kit.Raw(D("fill", coll, "from", 0, "to", n, "pad", pad))}}
}

func rename(from, to string, dropTarget bool) Event {
	return src("renameCollection", from, "to", to, "dropTarget", dropTarget)
}

// txn puts events into one transaction.
func (r *draw) txn(end history.Action, events ...Event) []Event {
	r.txns++
	events = append(events, Event{Do: Step, Step: &history.Step{Do: end}})
	for i := range events {
		events[i].Step.Txn = r.txns
	}
	return events
}

func start(args ...string) Event { return Begin("", args...) }

// soon is how long a trial waits for what may not come.
const soon = 10 * time.Second

func reached(phase string) Event { return Event{Do: Await, Want: "phase:" + phase, For: soon} }

func caughtUp() Event { return Event{Do: Await, Want: "caught-up", For: soon} }

// expired waits until the target has looked for what has expired.
func expired() Event { return Event{Do: Await, On: Target, Want: "ttl", For: soon} }

// rate lets so many documents a second pass; 0 is all.
func rate(docs int) Event { return Event{Do: Rate, Args: []string{fmt.Sprint(docs)}} }

func sleep(ms int) Event { return For(time.Duration(ms) * time.Millisecond) }

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
	pauses                int
}

// paired marks what is left out together with a pause: its end.
func (l *life) paired(e Event) Event { return Together(100+l.pauses, e)[0] }

// most starts of a job in a trial.
const mostStarts = 4

// among puts a job's life among steps, in one of three ways.
func (r *draw) among(steps []Event) []Event {
	return choose(r, r.bursts, r.lags, r.anywhere)(steps)
}

// lags holds a job back that follows, or ends it, while some steps happen, and
// then lets it catch up, again and again.
func (r *draw) lags(steps []Event) []Event {
	begin := r.IntN(1 + len(steps)/3)
	out := following(steps[:begin])
	rest := steps[begin:]
	for n := 0; len(rest) > 0 && n < mostStarts; n++ {
		some := min(len(rest), 2+r.IntN(7))
		lag := choose(r, []Event{{Do: PauseJob}, {Do: ResumeJob}}, []Event{rate(1), rate(0)}, []Event{rate(1), rate(0)},
			[]Event{{Do: Kill}, start()}, []Event{{Do: End}, start()})
		lag = Together(n+1, lag...)
		out = append(append(append(out, lag[0]), rest[:some]...), lag[1], reached("following"), caughtUp())
		rest = rest[some:]
	}
	return append(out, rest...)
}

// bursts kills a job that follows right after a few steps, before it can save
// its position, lets a few more happen, and starts it again.
func (r *draw) bursts(steps []Event) []Event {
	begin := r.IntN(1 + len(steps)/3)
	out := following(steps[:begin])
	rest := steps[begin:]
	for n := 0; len(rest) > 0 && n < mostStarts; n++ {
		live := min(len(rest), 2+r.IntN(7))
		out = append(out, rest[:live]...)
		rest = rest[live:]
		out = append(out, sleep(choose(r, 10, 40, 100, 200)), Event{Do: Kill})
		down := min(len(rest), r.IntN(5))
		out = append(out, rest[:down]...)
		rest = rest[down:]
		out = append(out, start(), reached("following"), caughtUp())
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
	if l.paused {
		if !l.running {
			out = append(out, start())
		}
		out = append(out, l.paired(Event{Do: ResumeJob}))
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
		out = []Event{Begin("", "--max-rate-docs", choose(r, "1", "20")), reached("copying"), sleep(choose(r, 0, 0, 50, 300))}
	} else {
		out = []Event{start(), reached(choose(r, "copying", "overlap", "following", "following"))}
	}
	if l.paused { // a pause outlives the process
		l.paused = false
		out = append(out, l.paired(Event{Do: ResumeJob}))
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
		return []Event{sleep(choose(r, 0, 30, 100, 300)), {Do: Kill}}
	case n == 3:
		l.running = false
		return []Event{{Do: End}}
	case n == 4 && l.paused:
		l.paused = false
		return []Event{l.paired(Event{Do: ResumeJob})}
	case n == 4:
		l.paused = true
		l.pauses++
		return []Event{l.paired(Event{Do: PauseJob})}
	case l.slow:
		l.slow = false
		return []Event{rate(0)}
	case n == 5 && !l.paused:
		l.slow = true
		return []Event{reached("following"), rate(1)}
	case n == 6 && !l.paused:
		return []Event{caughtUp()}
	case !l.paused:
		return []Event{reached("following"), sleep(r.IntN(60)), caughtUp()}
	}
	return nil
}

// following begins with a job that follows and has caught up.
func following(setup []Event) []Event {
	return append(append([]Event{}, setup...), start(), reached("following"), caughtUp())
}
