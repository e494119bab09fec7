package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/service"
)

func (a *app) workersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show and drain the workers of a service",
		Long: `Shows which processes run the jobs of a service (millrace serve), and has one give
back what it has: before its machine is upgraded, for example.`,
		Example: `  millrace workers list --server 127.0.0.1:8470
  millrace workers drain --worker host-b-4711 --wait`,
		RunE: cli.Group,
	}
	cmd.AddCommand(a.workersListCommand(), a.workersDrainCommand(), a.workersResumeCommand())
	return cmd
}

func (a *app) workersListCommand() *cobra.Command {
	var r remote
	return a.remoteCommand(&cobra.Command{
		Use:     "list --server URL",
		Short:   "List the workers that are there",
		Long:    "Lists the workers of a service, with those of their jobs that the token shows.",
		Example: `  millrace workers list`,
		Args:    cobra.NoArgs,
	}, &r, func(ctx context.Context) error {
		list, err := r.Workers(ctx)
		return then(err, func() error { return a.Tell(r.output, list, workerList(list)) })
	})
}

// workerList is a table of workers.
func workerList(list []service.Worker) string {
	if len(list) == 0 {
		return "the service has no worker\n"
	}
	t := table.NewWriter()
	t.AppendHeader(table.Row{"worker", "state", "jobs", "labels", "version", "host", "since"})
	for i := range list {
		w := &list[i]
		state, jobs := "takes jobs", fmt.Sprint(len(w.Jobs))
		if w.Draining {
			state = "draining"
		}
		if w.MaxJobs > 0 {
			jobs += fmt.Sprintf(" of %d", w.MaxJobs)
		}
		labels := []string{}
		for _, k := range slices.Sorted(maps.Keys(w.Labels)) {
			labels = append(labels, cli.Plain(k+"="+w.Labels[k]))
		}
		t.AppendRow(table.Row{cli.Plain(w.Name), state, jobs, strings.Join(labels, " "), cli.Plain(w.Version), cli.Plain(w.Host), w.StartedAt.UTC().Format(time.RFC3339)})
	}
	return t.Render() + "\n"
}

// workerWishCommand is one that does something to a worker.
func (a *app) workerWishCommand(cmd *cobra.Command, do func(context.Context, *remote, string) error) *cobra.Command {
	var r remote
	var name string
	a.remoteCommand(cmd, &r, func(ctx context.Context) error { return do(ctx, &r, name) })
	cmd.Args = cobra.NoArgs
	cmd.Flags().StringVar(&name, "worker", "", "`name` of the worker")
	_ = cmd.MarkFlagRequired("worker")
	return cmd
}

func (a *app) workersDrainCommand() *cobra.Command {
	var wait bool
	cmd := a.workerWishCommand(&cobra.Command{
		Use:   "drain --server URL --worker NAME",
		Short: "Have a worker give back its jobs",
		Long: `Has a worker take nothing more and give back what it has; others go on with it, from
the jobs' checkpoints. That holds for the process that runs now: the next one of its
name takes jobs. It needs a token of the role admin that shows all jobs.

With --wait it returns when the worker has no job.`,
		Example: `  millrace workers drain --worker host-b-4711 --wait`,
	}, func(ctx context.Context, r *remote, name string) error {
		w, err := r.Drain(ctx, name, true)
		if err == nil && wait {
			w, err = await(ctx, w, func(w service.Worker) (bool, error) { return len(w.Jobs) == 0, nil }, func() (service.Worker, error) {
				list, err := r.Workers(ctx)
				i := slices.IndexFunc(list, func(o service.Worker) bool { return o.Name == name })
				if err != nil || i < 0 {
					return service.Worker{Name: name}, err // it has ended, and has none
				}
				return list[i], nil
			})
		}
		return then(err, func() error { return a.Tell(r.output, w, cli.Plain(w.Name)+": drained\n") })
	})
	cmd.Flags().BoolVar(&wait, "wait", false, "return when the worker has no job")
	return cmd
}

func (a *app) workersResumeCommand() *cobra.Command {
	return a.workerWishCommand(&cobra.Command{
		Use:     "resume --server URL --worker NAME",
		Short:   "Have a drained worker take jobs again",
		Long:    "Takes back that a worker is drained.",
		Example: `  millrace workers resume --worker host-b-4711`,
	}, func(ctx context.Context, r *remote, name string) error {
		w, err := r.Drain(ctx, name, false)
		return then(err, func() error { return a.Tell(r.output, w, cli.Plain(w.Name)+": takes jobs\n") })
	})
}
