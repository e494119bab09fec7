package trial

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
)

// mixedThemes are about all that histories hold, with kills and failures at any
// time.
func mixedThemes() []Theme {
	return []Theme{
		{"points", points},
		{"copy-points", copyPoints},
		{"failures", failures},
	}
}

// spots are the named points of millrace (package failpoint), those of a run
// that follows.
func spots() []string {
	return strings.Fields("position.before save.before save.written save.after note.before note.written note.after " +
		"beat.before beat.after phase.before phase.after " +
		"window.after drain.before drain.after barrier.before schema.before schema.noted schema.after batch.before " +
		"batch.after send.before send.after " +
		"commit.before commit.after final.before final.after finalize.before finalize.after load.after session.before " +
		"take.before take.after")
}

// copySpots are those of a copy.
func copySpots() []string {
	return strings.Fields("copy.before copy.before copy.after copy.after slices.before slices.written slices.after " +
		"save.before save.after phase.before phase.after " +
		"load.after send.before send.after batch.before batch.after window.after take.after session.before")
}

// rule is something that happens at one of the points.
func rule(r *rand.Rand, spots []string, most int) string {
	at := pick(r, spots...)
	if r.IntN(4) == 0 {
		at, most = "*", 10*most
	}
	action := pick(r, "kill", "kill", "kill", "stop", fmt.Sprintf("sleep:%dms", 50+r.IntN(2000)))
	if strings.HasPrefix(at, "batch.") || at == "copy.before" {
		action = pick(r, "kill", "error", "error", "stop")
	}
	return fmt.Sprintf("%s:%d=%s", at, 1+r.IntN(most), action)
}

// settings are options that may differ from run to run.
func settings(r *rand.Rand) []string {
	return strings.Fields(pick(r, "", "", "--partitions 1", "--partitions 2", "--partitions 3 --readers 1 --writers 1",
		"--partitions 16", "--readers 4 --writers 4",
		"--max-rate-docs 2000", "--spool-max 0"))
}

// mix is a trial made of the steps of a history and of incidents.
type mix struct {
	t    Trial
	r    *rand.Rand
	spot []string
}

func (m *mix) add(e ...Event) { m.t.Events = append(m.t.Events, e...) }

// again starts the job, with something to happen in it perhaps.
func (m *mix) again() {
	rules := ""
	if m.r.IntN(3) > 0 {
		rules = rule(m.r, m.spot, 8)
	}
	m.add(Begin(rules, settings(m.r)...))
}

// incident happens to millrace.
func (m *mix) incident() {
	r := m.r
	switch r.IntN(12) {
	case 0:
		m.add(Event{Do: Kill})
		m.again()
	case 1:
		m.add(Event{Do: Arm, Points: rule(r, m.spot, 4)})
	case 2:
		m.add(Event{Do: Await, Want: "point", For: time.Second}, For(between(r, 0, 300*time.Millisecond)), Event{Do: Wake})
		m.again()
	case 3:
		m.add(Event{Do: Stop}, For(between(r, 0, 500*time.Millisecond)), Event{Do: Wake})
	case 4:
		m.add(Event{Do: KillCursors, On: pick(r, Source, Source, Target)})
	case 5:
		m.add(Event{Do: KillSessions, On: pick(r, Source, Target)})
	case 6:
		m.add(Event{Do: Await, Want: "caught-up", For: 2 * time.Second})
	case 7:
		m.add(Event{Do: Await, Want: "ended", For: 500 * time.Millisecond})
		m.again()
	case 8:
		m.add(Event{Do: Start, Process: 1, Args: settings(r), Points: rule(r, m.spot, 4)}, For(between(r, 0, time.Second)))
		if r.IntN(3) > 0 {
			m.add(Event{Do: Kill, Process: r.IntN(2)})
		}
		m.again()
	case 9:
		if r.IntN(2) == 0 {
			m.add(Event{Do: Kill})
		}
		m.add(Event{Do: Start, Process: r.IntN(2), Args: append(settings(r), "--restart"), Points: rule(r, m.spot, 4)})
	case 10: // what is sent takes long, and is perhaps abandoned
		m.add(blocked(r, "", pick(r, "insert", "update", "delete", "create", "drop", "createIndexes")))
		if r.IntN(2) == 0 {
			m.add(Event{Do: Await, On: Target, Want: "entered:failCommand", For: time.Second})
			m.add(interrupted(r)...)
		}
	case 11:
		m.add(Event{Do: Note, On: pick(r, Source, Target)})
	}
}

// begin makes the trial's history up to the job's start.
func (m *mix) begin(noCapped bool, writers int) *history.Generator {
	g := history.NewGenerator(history.Options{Seed: m.r.Uint64(), Writers: writers, NoCapped: noCapped,
		Streamed: kit.Streamed(),
		Since:    func(major, _ int) bool { return major <= 6 }})
	for _, s := range g.Setup() {
		m.add(Event{Do: Step, Step: &s})
	}
	return g
}

// steps adds steps of the history.
func (m *mix) steps(g *history.Generator, writers, n int) {
	for range n {
		s := g.Next(m.r.IntN(writers))
		m.add(Event{Do: Step, Step: &s})
	}
}

// points kills and delays millrace at its named points while it follows.
func points(r *rand.Rand) Trial {
	m := &mix{r: r, spot: spots()}
	m.t.Args = []string{"--include", "db", "--include", "db-*", "--on-existing", "drop"}
	writers := 1 + r.IntN(3)
	g := m.begin(false, writers)
	m.again()
	if r.IntN(3) > 0 {
		m.add(Event{Do: Await, Want: "phase:following", For: 10 * time.Second})
	}
	for range 4 + r.IntN(8) {
		m.steps(g, writers, 5+r.IntN(25))
		m.incident()
	}
	return m.t
}

// copyPoints does so while it copies.
func copyPoints(r *rand.Rand) Trial {
	m := &mix{r: r, spot: copySpots()}
	m.t.Args = []string{"--include", "db", "--include", "db-*", "--on-existing", "drop"}
	writers := 1 + r.IntN(3)
	g := m.begin(false, writers)
	for c := range 1 + r.IntN(3) {
		m.add(Filled("db", fmt.Sprint("large", c), 0, 500+r.IntN(6000), pick(r, 100, 1000, 4000)))
	}
	m.again()
	for range 4 + r.IntN(8) {
		m.steps(g, writers, 3+r.IntN(10))
		if r.IntN(3) == 0 {
			lo := r.IntN(3000)
			m.add(
				Do("db", D("delete", "large0", "deletes", A(D("q", D("_id", D("$gte", lo, "$lt", lo+r.IntN(2000))), "limit", 0)))))
		}
		m.incident()
	}
	return m.t
}

// failures strikes the servers of both sides as well.
func failures(r *rand.Rand) Trial {
	m := &mix{r: r, spot: append(spots(), copySpots()...)}
	m.t = Trial{Source: Shape{Members: 3, Proxy: true}, Target: Shape{Members: 3, Proxy: true},
		Args: []string{"--include", "db", "--include", "db-*", "--on-existing", "drop"}}
	writers := 1 + r.IntN(3)
	g := m.begin(true, writers)
	m.add(Filled("db", "large", 0, 500+r.IntN(6000), pick(r, 100, 1000)))
	m.again()
	if r.IntN(2) == 0 {
		m.add(Event{Do: Await, Want: "phase:following", For: 20 * time.Second})
	}
	for range 2 + r.IntN(4) {
		m.steps(g, writers, 5+r.IntN(20))
		on := pick(r, Source, Target, Target)
		if r.IntN(2) == 0 {
			m.add(Event{Do: Hold, On: on})
			m.steps(g, writers, r.IntN(20))
			m.add(For(between(r, 0, 400*time.Millisecond)))
		}
		switch r.IntN(4) {
		case 0:
			m.add(Event{Do: Down, On: on}, Event{Do: Release, On: on}, Until(on, "primary"))
		case 1:
			m.add(Event{Do: StepDown, On: on}, Event{Do: Release, On: on}, Until(on, "primary"))
		case 2:
			m.add(Event{Do: Isolate, On: on, Alone: r.IntN(3) == 0}, Event{Do: Release, On: on})
			m.steps(g, writers, r.IntN(10))
			if r.IntN(2) == 0 {
				m.add(Event{Do: Elect, On: on})
			}
			m.add(Until(on, "primary"))
			m.steps(g, writers, r.IntN(10))
		default:
			m.add(Event{Do: Release, On: on})
		}
		m.incident()
		if r.IntN(3) > 0 {
			m.add(Event{Do: Rejoin, On: on}, Event{Do: Up, On: on})
		}
	}
	return m.t
}
