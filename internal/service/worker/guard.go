package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/spawn"
)

// Guard kills its parent, a worker, after limit without a byte on in. A worker that hangs keeps its connections, so
// its writes could arrive when another worker has the job. Guard returns when the parent ends.
func Guard(in io.Reader, limit time.Duration) error {
	parent := os.Getppid()
	beats := make(chan error)
	go func() {
		buf := make([]byte, 64)
		for {
			_, err := in.Read(buf)
			beats <- err
			if err != nil {
				return
			}
		}
	}()
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		select {
		case err := <-beats:
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("listen to the worker: %w", err)
			}
			late.Reset(limit)
		case <-late.C:
			if os.Getppid() != parent {
				return nil
			}
			if err := syscall.Kill(parent, syscall.SIGKILL); err != nil {
				return fmt.Errorf("kill the worker, which says nothing: %w", err)
			}
			return fmt.Errorf("killed worker %d, which has said nothing for %s", parent, limit)
		}
	}
}

// Guardian starts the guardian of this process, and restarts it.
type Guardian struct {
	// Command is a program that calls Guard, with its arguments.
	Command []string
	// Limit is the longest silence of this process.
	Limit time.Duration
	Log   *slog.Logger
}

// Run guards this process until ctx ends.
func (g *Guardian) Run(ctx context.Context) error {
	for {
		err := g.once(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		g.Log.Warn("the worker's guardian has ended, and is started again", "error", err)
		if err := pace.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (g *Guardian) once(ctx context.Context) error {
	cmd := spawn.Command(g.Command[0], g.Command[1:]...) // it ends with its standard input
	// A signal from the terminal is for the worker.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start the guardian: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the guardian: %w", err)
	}
	return errors.Join(g.beat(ctx, in), in.Close(), mongo.Wrap(cmd.Wait(), "the guardian"))
}

func (g *Guardian) beat(ctx context.Context, in io.Writer) error {
	for {
		if _, err := in.Write([]byte{'.'}); err != nil {
			return fmt.Errorf("tell the guardian: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(g.Limit / 10):
		}
	}
}
