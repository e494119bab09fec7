package test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/workshop/lab"
)

const (
	// namedWithin is how long a job may stand still without naming a wait: 10 s, and as
	// much again for a busy machine. A server that is stopped fails a connection after 40 s.
	namedWithin = 20 * time.Second
	// goesOnFor is how long a job has to go on for to need no server that is stopped.
	goesOnFor = 12 * time.Second
)

// StopServer stops a server (SIGSTOP) until each of some jobs names what it waits for, or
// has gone on for a while without the server; in make matrix for longer than connections
// to it last. Then the server and the jobs go on. The test has something to be copied or
// applied by each of them all the time.
func StopServer(t *testing.T, name string, pid int, jobs ...func() job.Status) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	wake := func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
	t.Cleanup(wake) // else the server does not end
	least := time.Duration(0)
	if lab.InMatrix() {
		least = 90 * time.Second
	}
	began := time.Now()
	var all []*beside
	for _, status := range jobs {
		all = append(all, &beside{name: name, status: status, began: began, clear: began, done: -1})
	}
	for enough := false; !enough || time.Since(began) <= least; time.Sleep(50 * time.Millisecond) {
		enough = true
		for _, b := range all {
			b.look(t)
			enough = enough && b.seen
		}
		if t.Failed() {
			wake()
			t.FailNow()
		}
	}
	wake()
	for _, b := range all {
		b.goesOn(t)
	}
}

// beside is a job beside a server that is stopped.
type beside struct {
	name         string // of the server
	status       func() job.Status
	began, clear time.Time // clear is when it last moved or named a wait
	done         int64
	said         string
	seen         bool // that it names a wait, or goes on without the server
}

func (b *beside) look(t *testing.T) {
	t.Helper()
	st, now := b.status(), time.Now()
	moved := st.Copy.Docs+st.Follow.Operations != b.done
	b.done = st.Copy.Docs + st.Follow.Operations
	if st.Waiting != "" && st.Waiting != b.said {
		b.said = st.Waiting
		t.Logf("%s stopped in phase %s: after %.1f s the job waits for %s", b.name, st.Phase, now.Sub(b.began).Seconds(),
			b.said)
	}
	if (st.Waiting != "") != (st.WaitingSince != nil) {
		t.Errorf("%s stopped: the job waits for %q since %v", b.name, st.Waiting, st.WaitingSince)
	}
	if st.Waiting != "" || moved {
		b.clear = now
	}
	if now.Sub(b.clear) > namedWithin {
		t.Errorf("%s stopped in phase %s: nothing has moved for %s, and the status names no wait", b.name, st.Phase,
			now.Sub(b.clear))
	}
	b.seen = b.seen || st.Waiting != "" || moved && now.Sub(b.began) > goesOnFor
}

// goesOn waits for the job to go on with the server.
func (b *beside) goesOn(t *testing.T) {
	t.Helper()
	if b.said == "" {
		t.Logf("%s stopped in phase %s: the job goes on", b.name, b.status().Phase)
	}
	for until := time.Now().Add(4 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		st := b.status()
		if st.Waiting == "" && st.Copy.Docs+st.Follow.Operations > b.done {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%s goes on, and the job does not: in phase %s it waits for %q", b.name, st.Phase, st.Waiting)
		}
	}
}
