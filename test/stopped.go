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

// StopServer stops a server (SIGSTOP) until the job names what it waits for, or until it
// has gone on for a while without the server; in make matrix for longer than connections
// to it last. Then the server and the job go on. The test has something to be copied or
// applied all the time.
func StopServer(t *testing.T, name string, pid int, status func() job.Status) {
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
	began, clear, done, said := time.Now(), time.Now(), int64(-1), ""
	for ; ; time.Sleep(50 * time.Millisecond) {
		st, now := status(), time.Now()
		moved := st.Copy.Docs+st.Follow.Operations != done
		done = st.Copy.Docs + st.Follow.Operations
		if st.Waiting != "" && st.Waiting != said {
			said = st.Waiting
			t.Logf("%s stopped in phase %s: after %.1f s the job waits for %s", name, st.Phase, now.Sub(began).Seconds(), said)
		}
		if (st.Waiting != "") != (st.WaitingSince != nil) {
			t.Errorf("%s stopped: the job waits for %q since %v", name, st.Waiting, st.WaitingSince)
		}
		if st.Waiting != "" || moved {
			clear = now
		}
		if now.Sub(clear) > namedWithin {
			wake()
			t.Fatalf("%s stopped in phase %s: nothing has moved for %s, and the status names no wait", name, st.Phase,
				now.Sub(clear))
		}
		if now.Sub(began) > least && (st.Waiting != "" || moved && now.Sub(began) > goesOnFor) {
			break
		}
	}
	if said == "" {
		t.Logf("%s stopped: the job goes on", name)
	}
	wake()
	for until := time.Now().Add(4 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		st := status()
		if st.Waiting == "" && st.Copy.Docs+st.Follow.Operations > done {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%s goes on, and the job does not: in phase %s it waits for %q", name, st.Phase, st.Waiting)
		}
	}
}
