package progress

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// clock is a time that a test moves.
type clock struct{ now time.Time }

func (c *clock) after(d time.Duration) { c.now = c.now.Add(d) }

func newProgress() (*Progress, *clock) {
	c := &clock{now: time.Unix(1000, 0)}
	return New(Options{Job: "j", Now: func() time.Time { return c.now },
		Usage:    func() procstat.Usage { return procstat.Usage{PID: 7, CPUSeconds: float64(c.now.Unix()) / 2} },
		ReadFrom: func(p stream.Position) (mongo.OpTime, error) { return p.At, nil }}), c
}

func status(p *Progress) Status {
	return p.Status(func(at mongo.OpTime) mongo.OpTime { return at })
}

func at(second uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: second}} }

// TestStatus: phases, waits, the oplog window and the use of the process that was
// handed in, by the clock that was handed in.
func TestStatus(t *testing.T) {
	p, c := newProgress()
	c.after(2 * time.Second)
	p.Enter(state.PhaseCopying)
	p.Wait("somebody")
	waited := c.now
	c.after(3 * time.Second)
	p.Wait("somebody else")
	p.CountError("retry")
	if from := p.SetApplied(stream.Position{At: at(500)}); from != at(500) || p.ReadFrom() != from {
		t.Errorf("reads from %s", from)
	}
	p.SourceAt(mongo.Positions{Last: at(900), Majority: at(900), Now: time.Unix(900, 0)})
	p.SourceWindow(&oplog.Window{Oldest: at(400)})
	for range 20 {
		p.Sample()
		c.after(time.Second)
	}
	st := status(p)
	if st.PhaseSeconds[state.PhaseStarting] != 2 || st.PhaseSeconds[state.PhaseCopying] != 23 || st.Errors["retry"] != 1 {
		t.Errorf("%v, %v", st.PhaseSeconds, st.Errors)
	}
	if st.Waiting != "somebody else" || !st.WaitingSince.Equal(waited) {
		t.Errorf("waits for %s since %s", st.Waiting, st.WaitingSince)
	}
	if st.Follow.WindowSeconds != 100 || st.Follow.LagSeconds != -1 || st.Copy.ETASeconds != -1 {
		t.Errorf("%+v", st.Follow)
	}
	if st.Process.PID != 7 || st.Process.CPUPercent != 50 {
		t.Errorf("%+v", st.Process)
	}
	if now := p.SourceTime().T; now != 920 {
		t.Errorf("the source's time is %d", now)
	}
	st.Errors["retry"] = 9 // a snapshot is its reader's own
	p.Wait("")
	p.SourceSilent(errors.New("gone"))
	p.Fail(mongo.WithHint(errors.New("broken"), "mend it"))
	if st = status(p); st.Errors["retry"] != 1 || st.Waiting == "" || st.Phase != state.PhaseFailed ||
		st.Error != "broken" || st.Hint != "mend it" {
		t.Errorf("%+v", st)
	}
}

func TestLag(t *testing.T) {
	for _, c := range []struct {
		applied, majority, last uint32
		want                    float64
	}{{0, 9, 9, -1}, {5, 9, 0, -1}, {9, 9, 12, 0}, {5, 9, 9, 4}} {
		p := mongo.Positions{Majority: at(c.majority), Last: at(c.last)}
		if got := lag(at(c.applied), p); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	same := mongo.Positions{Majority: mongo.OpTime{TS: bson.Timestamp{T: 9, I: 2}}, Last: at(9)}
	if got := lag(at(9), same); got != 0.5 {
		t.Errorf("within a second: %v", got)
	}
}

// TestStalledBuild: an index build that makes no progress is what the job waits for,
// unless it waits for something else.
func TestStalledBuild(t *testing.T) {
	p, c := newProgress()
	since := c.now
	c.after(time.Minute)
	p.SetIndexes([]Index{{NS: "d.a", Done: 1, Total: 2}, {NS: "d.b", Stalled: "member h:1 is down", StalledSince: &since}})
	st := status(p)
	if st.Waiting != "an index build of d.b on the target: member h:1 is down" || st.WaitingSince == nil ||
		!st.WaitingSince.Equal(since) {
		t.Errorf("waits for %q since %v", st.Waiting, st.WaitingSince)
	}
	p.Wait("somebody")
	if st := status(p); st.Waiting != "somebody" {
		t.Errorf("waits for %q", st.Waiting)
	}
	p.Wait("")
	p.SetIndexes(nil)
	if st := status(p); st.Waiting != "" || st.WaitingSince != nil {
		t.Errorf("waits for %q", st.Waiting)
	}
}
