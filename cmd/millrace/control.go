package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
)

// controlCommand makes a command that finds a running sync and does something
// with it.
func (a *app) controlCommand(cmd *cobra.Command, do func(context.Context, *server.Client, *config.Control) error) *cobra.Command {
	var s config.Control
	name := cmd.Name()
	s.Bind(cmd.Flags(), name)
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, err := a.settings(cmd.Flags(), name, s.Validate); err != nil {
			return err
		}
		c, err := a.client(cmd.Context(), &s)
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd.Context(), c, &s)
	}
	return cmd
}

func (a *app) pauseCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:   "pause",
		Short: "Stop a running sync's work until resume",
		Long: `Stops reading and writing after a checkpoint. The sync keeps running and keeps
its place, as long as the source's oplog does: see the window in its status.`,
		Example: `  millrace pause --job orders`,
	}, a.simple("paused", (*server.Client).Pause))
}

func (a *app) resumeCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:     "resume",
		Short:   "Let a paused sync go on",
		Example: `  millrace resume --job orders`,
	}, a.simple("resumed", (*server.Client).Resume))
}

// client finds the sync that the settings mean.
func (a *app) client(ctx context.Context, s *config.Control) (*server.Client, error) {
	registry, err := server.NewRegistry(a.lookupEnv)
	if err != nil && s.Address == "" {
		return nil, err
	}
	rec, err := registry.Find(ctx, s.Address, s.Job)
	switch {
	case err == nil:
		return server.NewClient(rec.Address, cmp.Or(s.Token, rec.Token)), nil
	case s.Address != "" && ctx.Err() == nil:
		return server.NewClient(s.Address, s.Token), nil // on another machine, or of another user
	}
	return nil, err
}

// simple is a request that changes the job and reports its new status.
func (a *app) simple(done string, call func(*server.Client, context.Context) (job.Status, error)) func(context.Context, *server.Client, *config.Control) error {
	return func(ctx context.Context, c *server.Client, s *config.Control) error {
		st, err := call(c, ctx)
		if err != nil {
			return err
		}
		if s.Output == "json" {
			return writeJSON(a.stdout, st)
		}
		_, err = fmt.Fprintf(a.stdout, "%s: %s (phase %s)\n", plain(st.Job), done, st.Phase)
		return err
	}
}

// differencesError is the error of a job that is finalized but differs.
func differencesError(s job.Status) error {
	if len(s.Differences) == 0 {
		return nil
	}
	return mongo.WithHint(errors.New("finalized, but the target differs from the source in "+plural(len(s.Differences), "thing")),
		"millrace verify compares again and lists documents")
}
