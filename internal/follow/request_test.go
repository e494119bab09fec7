package follow

import (
	"errors"
	"testing"
	"time"
)

// TestRequestIsLoggedOnce: the log is to have a request to finalize once, whoever repeats it;
// one that comes after another was withdrawn is another one.
func TestRequestIsLoggedOnce(t *testing.T) {
	want := func(r *Finalize, isNew bool) {
		t.Helper()
		if _, got := r.Request(); got != isNew {
			t.Errorf("new %v", got)
		}
	}
	r := NewFinalize(time.Now, false, time.Time{}, false)
	want(r, true)
	want(r, false)
	if was, begun := r.Withdraw(); !was || begun {
		t.Fatal("it was not there")
	}
	want(r, true)
	r = NewFinalize(time.Now, false, time.Time{}, true) // by another process
	want(r, false)
	r.Withdraw()
	want(r, true)
}

// TestRequestIsDue: a job is finalized on request, or from a time on; what has begun cannot be
// withdrawn, and what an earlier run has begun goes on.
func TestRequestIsDue(t *testing.T) {
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	r := NewFinalize(clock, false, time.Unix(1001, 0), false)
	if r.due(true) || r.Requested() {
		t.Error("due before its time")
	}
	now = time.Unix(1001, 0)
	if !r.due(false) || r.Requested() {
		t.Error("not due at its time, or requested by somebody")
	}
	if was, begun := r.Withdraw(); !was || begun || r.due(true) {
		t.Error("due after it was withdrawn")
	}
	withdrawn, _ := r.Request()
	if !r.due(true) || !r.Requested() {
		t.Error("not due on request")
	}
	if was, begun := r.Withdraw(); !was || !begun || !r.due(false) {
		t.Error("withdrawn after it began")
	}
	select {
	case <-withdrawn:
		t.Error("whoever waits for it goes on")
	default:
	}
	r = NewFinalize(clock, false, time.Time{}, false)
	if r.Resume(); !r.due(false) {
		t.Error("what an earlier run has begun is not due")
	}
}

// TestRequestIsRejected: the job withdraws an operator's request by itself and says why. It
// fails where its definition says when to finalize, and where it has begun to.
func TestRequestIsRejected(t *testing.T) {
	why := errors.New("indexes are built")
	r := NewFinalize(time.Now, false, time.Time{}, false)
	withdrawn, _ := r.Request()
	if err := r.reject(why); err != nil || r.due(false) || !errors.Is(r.Rejection(), why) {
		t.Errorf("%v, due %t, rejected for %v", err, r.due(false), r.Rejection())
	}
	select {
	case <-withdrawn:
	default:
		t.Error("whoever waits for it is not notified")
	}
	if r.Request(); r.Rejection() != nil || !r.due(true) {
		t.Error("a new request does not count")
	}
	if err := r.reject(why); !errors.Is(err, why) {
		t.Errorf("after it began: %v", err)
	}
	if err := NewFinalize(time.Now, true, time.Time{}, false).reject(why); !errors.Is(err, why) {
		t.Errorf("by the job's definition: %v", err)
	}
}
