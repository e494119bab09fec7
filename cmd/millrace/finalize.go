package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
)

func (a *app) finalizeCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:   "finalize",
		Short: "Cut over: drain a running sync to the source's newest position",
		Long: `Asks a running sync for the cut-over and waits for it: everything the source has
at this moment is applied and durable, and what was deferred (unique indexes,
TTL) is restored. Stop the writes to the source first; later ones stay behind.
The sync ends after that.

An interrupt ends the waiting, not the finalization. Exit code 1 when something
differs from the source.`,
		Example: `  millrace finalize --job orders`,
	}, a.finalize)
}

func (a *app) finalize(ctx context.Context, c *server.Client, s *config.Control) error {
	st, err := a.awaitFinalized(ctx, c)
	if err != nil {
		if ctx.Err() != nil {
			return mongo.WithHint(fmt.Errorf("%w; the finalization goes on", context.Cause(ctx)), "see millrace status")
		}
		return err
	}
	if s.Output == "json" {
		err = writeJSON(a.stdout, st)
	} else {
		var b strings.Builder
		fmt.Fprintf(&b, "%s: finalized at %s\n", plain(st.Job), st.Follow.Applied)
		writeDifferences(&b, st.Differences)
		_, err = fmt.Fprint(a.stdout, b.String())
	}
	if err != nil {
		return err
	}
	return differencesError(st)
}

// awaitFinalized waits for the reply, and shows the progress meanwhile where
// there is a terminal.
func (a *app) awaitFinalized(ctx context.Context, c *server.Client) (job.Status, error) {
	screen := a.screen()
	if screen == nil {
		return c.Finalize(ctx)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer screen.clear()
		every(watching, time.Second, func() {
			if st, err := c.Status(watching); err == nil {
				screen.draw(func(columns, rows int) []string { return view(st, time.Now(), columns, rows) })
			}
		})
	})
	st, err := c.Finalize(ctx)
	stop()
	wg.Wait()
	return st, err
}
