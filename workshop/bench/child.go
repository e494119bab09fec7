package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/workshop/lab"
)

// child is a running program.
type child struct {
	*lab.Child
	name string
	cmd  *exec.Cmd
	out  tail
}

// program is what is started.
type program struct {
	name          string
	args          []string
	env           []string  // beyond that of the bench without its settings
	dir           string    // where it runs; empty is where the bench does
	stdin, stdout *os.File  // nil is nothing, and what the child remembers
	log           io.Writer // takes its standard error, too, unless it is nil
}

// startChild starts a program whose end wait or stop wait for. It is told to
// end when ctx ends.
func startChild(ctx context.Context, p program) (*child, error) {
	c := &child{name: filepath.Base(p.name)}
	c.cmd = spawn.CommandContext(ctx, p.name, p.args...)
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = 10 * time.Second
	c.cmd.Dir = p.dir
	c.cmd.Env = append(c.cmd.Env, p.env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	if p.log != nil {
		c.cmd.Stderr = io.MultiWriter(&c.out, p.log)
	}
	if p.stdin != nil {
		c.cmd.Stdin = p.stdin
	}
	if p.stdout != nil {
		c.cmd.Stdout = p.stdout
	}
	var err error
	if c.Child, err = lab.StartChild(c.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// cpu is the processor time used, after the end.
func (c *child) cpu() float64 {
	return (c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()).Seconds()
}

// wait waits for the end; an error says what the program said last.
func (c *child) wait() error {
	if err := c.Wait(); err != nil {
		return fmt.Errorf("%s: %w; it said:\n%s", c.name, err, c.out.String())
	}
	return nil
}

// stop asks a program to end that does not end by itself, and waits for it.
// An end that came before is an error.
func (c *child) stop() error {
	select {
	case <-c.Done():
		return fmt.Errorf("%s ended by itself (%w); it said:\n%s", c.name, errOr(c.Wait(), "exit 0"), c.out.String())
	default:
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end %s: %w", c.name, err)
	}
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.Done()
	}
	return nil
}

func errOr(err error, text string) error {
	if err == nil {
		return errors.New(text)
	}
	return err
}

// tail keeps the end of what is written to it. It is safe for concurrent use.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const tailSize = 4000

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Write(p)
	if over := t.b.Len() - tailSize; over > tailSize {
		t.b.Next(over)
	}
	return len(p), nil
}

// String is what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.b.Bytes()
	return strings.ToValidUTF8(string(s[max(len(s)-tailSize, 0):]), "?")
}
