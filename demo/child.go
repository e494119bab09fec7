package main

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/spawn"
)

// child is a millrace process. Neither the user's settings nor the user's
// running syncs are touched.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how; read after done
}

// start starts millrace; prepare sets what the process is connected to. When
// ctx ends it is asked to end, and killed ten seconds later.
func (d *demo) start(ctx context.Context, prepare func(*exec.Cmd), args ...string) (*child, error) {
	cmd := spawn.CommandContext(ctx, d.millrace, args...)
	cmd.Env = append(cmd.Env, "MILLRACE_SOURCE="+d.source.URI(), "MILLRACE_TARGET="+d.target.URI(), "XDG_STATE_HOME="+d.dir)
	cmd.SysProcAttr = childAttr()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	prepare(cmd)
	c := &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	// The kernel ties the child's death to the thread that started it, which
	// therefore stays until the child has ended.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
		}
		close(c.done)
	}()
	return c, <-started
}

// wait returns how the child ended.
func (c *child) wait() error {
	<-c.done
	return c.err
}

// ended reports whether it has.
func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
