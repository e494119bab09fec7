package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state"
)

// connectToLook connects to a side, whose connection string may come from the
// environment, for looks.
func (a *app) connectToLook(ctx context.Context, flag, uri string) (*mongo.Cluster, error) {
	return a.connectFor(ctx, flag, uri, "millrace-debug")
}

func (a *app) connectFor(ctx context.Context, flag, uri, name string) (*mongo.Cluster, error) {
	uri, err := a.address(flag, uri, fmt.Errorf("no %s is given", flag))
	if err != nil {
		return nil, err
	}
	c, err := mongo.Connect(ctx, uri, mongo.Options{AppName: name})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return c, nil
}

// stored is a look at what a target has stored of jobs: its flags, and then what
// its commands found.
type stored struct {
	*app
	target, job, output string

	cluster *mongo.Cluster
}

func (s *stored) command(cmd *cobra.Command, do func(context.Context) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if s.cluster, err = s.connectToLook(cmd.Context(), "target", s.target); err != nil {
			return err
		}
		defer s.cluster.Close()
		return do(cmd.Context())
	}
	bind(cmd, "stored", config.Vars{"target": &s.target})
	cli.BindOutput(cmd, &s.output, "text", "json")
	return cmd
}

func (s *stored) bindJob(cmd *cobra.Command, set string) {
	bind(cmd, set, config.Vars{"job": &s.job})
	s.Offer(cmd, "job", s.completions)
}

func (s *stored) jobCommand(cmd *cobra.Command, do func(context.Context) error) *cobra.Command {
	s.command(cmd, func(ctx context.Context) error {
		return then(s.only(ctx), func() error { return do(ctx) })
	})
	s.bindJob(cmd, "stored job")
	return cmd
}

func (s *stored) only(ctx context.Context) (err error) {
	if s.job == "" {
		s.job, err = onlyJob(ctx, s.cluster)
	}
	return err
}

func onlyJob(ctx context.Context, c *mongo.Cluster) (string, error) {
	jobs, err := state.List(ctx, c)
	if err != nil {
		return "", err
	}
	names := make([]string, len(jobs))
	for i := range jobs {
		names[i] = jobs[i].ID
	}
	switch len(names) {
	case 0:
		return "", mongo.WithHint(fmt.Errorf("%s has no jobs", c.Address()),
			"check --target: a job is stored on its target, in the database "+mongo.StateDB)
	case 1:
		return names[0], nil
	}
	return "", misuse(fmt.Errorf("there are several jobs: %s", cli.Plain(strings.Join(names, ", "))),
		"choose one with --job")
}
