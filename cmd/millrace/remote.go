package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
)

// remote is one run of a command that asks a service: its flags, and its client.
type remote struct {
	*app
	config.Service
	job, output string

	*api.Client
}

func (r *remote) bindServer(cmd *cobra.Command) {
	bind(cmd, "service", config.Vars{"server": &r.Server, "token": &r.Token, "ca-file": &r.CAFile})
}

func (r *remote) connect() error {
	if r.Server == "" {
		return misuse(errors.New("no service is given"), "use --server or set "+config.EnvName("server"))
	}
	if err := server.CheckAddress(r.Server); err != nil {
		return cli.WithCode(cli.ExitUsage, mongo.Wrap(err, "--server"))
	}
	r.Client = api.NewClient(r.Server, r.Token)
	return cli.WithCode(cli.ExitUsage, mongo.Wrap(r.TrustAuthorities(r.CAFile), "--ca-file"))
}

func asked(err error) error {
	if api.IsRefusal(err) {
		return cli.WithCode(cli.ExitUsage, err)
	}
	return err
}

func (r *remote) command(cmd *cobra.Command, do func(context.Context) error) *cobra.Command {
	r.bindServer(cmd)
	cli.BindOutput(cmd, &r.output, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := r.connect(); err != nil {
			return err
		}
		defer r.Close()
		return asked(do(cmd.Context()))
	}
	return cmd
}

func (r *remote) jobCommand(cmd *cobra.Command, do func(context.Context) error) *cobra.Command {
	r.command(cmd, do)
	bind(cmd, "job", config.Vars{"job": &r.job})
	_ = cmd.MarkFlagRequired("job")
	r.Offer(cmd, "job",
		func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return r.completions(cmd.Context()), cobra.ShellCompDirectiveNoFileComp
		})
	return cmd
}

// completions are the names of a service's jobs; what cannot be asked completes nothing.
func (r *remote) completions(ctx context.Context) (names []cobra.Completion) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for flag, value := range map[string]*string{"server": &r.Server, "token": &r.Token, "ca-file": &r.CAFile} {
		*value = r.uri(flag, *value)
	}
	if r.connect() != nil {
		return nil
	}
	defer r.Close()
	list, _ := r.Jobs(ctx, "", "")
	for i := range list {
		names = append(names, cobra.CompletionWithDesc(list[i].Name, string(list[i].State)))
	}
	return names
}

// orRemote has a command that reads a target ask a service instead, if --server is given.
func (s *stored) orRemote(cmd *cobra.Command, ask func(*remote, context.Context) error) *cobra.Command {
	r := remote{app: s.app}
	r.bindServer(cmd)
	look := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		server, err := s.chosen(r.Server, s.target)
		if err != nil || !server {
			return then(err, func() error { return look(cmd, args) })
		}
		if err := r.connect(); err != nil {
			return err
		}
		defer r.Close()
		r.job, r.output = s.job, s.output
		return asked(ask(&r, cmd.Context()))
	}
	return cmd
}

// chosen reports whether the service is asked, not the target. A flag wins over the environment.
func (a *app) chosen(server, target string) (bool, error) {
	hint := "use --server or --target, or set " + config.EnvName("server") + " or " + config.EnvName("target")
	switch {
	case server == "" && target == "":
		return false, misuse(errors.New("neither a service nor a target is given"), hint)
	case server == "" || target == "":
		return server != "", nil
	}
	fromEnv := func(flag, value string) bool { return a.uri(flag, "") == value }
	if env := fromEnv("server", server); env != fromEnv("target", target) {
		return !env, nil
	}
	if a.uri("server", "") != server { // both are flags
		return false, misuse(errors.New("both a service and a target are given"), "give one of --server and --target")
	}
	return false, misuse(fmt.Errorf("both %s and %s are set", config.EnvName("server"), config.EnvName("target")),
		"give --server or --target, which wins, or unset one of the two")
}

func jobsCreateCommand(a *app) *cobra.Command {
	r := remote{app: a}
	var d defined
	cmd := r.command(a.described("jobs create", &cobra.Command{}, d.vars()), func(ctx context.Context) error {
		n, err := d.read()
		if err != nil {
			return err
		}
		j, made, err := r.Create(ctx, n)
		return then(err, func() error { return r.tellDone(&j, requested(made, "created", "exists already, nothing done")) })
	})
	_, _ = cmd.MarkFlagRequired("file"), cmd.MarkFlagRequired("name")
	return cmd
}

func jobsEditCommand(a *app) *cobra.Command {
	r := remote{app: a}
	var d defined
	cmd := r.jobCommand(a.described("jobs edit", &cobra.Command{}, d.vars()), func(ctx context.Context) error {
		n, err := d.read()
		if err != nil {
			return err
		}
		n.Name = r.job
		j, err := api.Ask[api.Job](ctx, r.Client, http.MethodPut, api.At(api.PathJob, n.Name), n)
		return then(err, func() error { return r.tellDone(&j, "has new settings, and starts again") })
	})
	_ = cmd.MarkFlagRequired("file")
	return cmd
}

// defined is a definition as flags give it.
type defined struct {
	api.NewJob

	file   string
	labels []string
}

func (d *defined) vars() config.Vars {
	return config.Vars{"name": &d.Name, "file": &d.file, "label": &d.labels, "paused": &d.Paused}
}

func (d *defined) read() (n api.NewJob, err error) {
	n = d.NewJob
	if n.Labels, err = service.ParseLabels(d.labels); err != nil {
		return n, cli.WithCode(cli.ExitUsage, mongo.Wrap(err, "--label"))
	}
	text, err := settingsFile(d.file)
	if err != nil {
		return n, cli.WithCode(cli.ExitUsage, mongo.Wrap(err, "--file"))
	}
	n.Settings, err = json.Marshal(text)
	return n, err
}

func settingsFile(file string) (string, error) {
	in := io.Reader(os.Stdin)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, service.MaxSettings+1))
	if err != nil {
		return "", err
	}
	if len(raw) > service.MaxSettings {
		return "", mongo.WithHint(fmt.Errorf("%s is larger than %d bytes", file, service.MaxSettings), "check the path")
	}
	return string(raw), nil
}

// requested returns before for a request that was made earlier and changes nothing.
func requested(made bool, now, before string) string {
	if made {
		return now
	}
	return before
}

func doneText(j *api.Job, done string) string {
	return fmt.Sprintf("%s: %s (%s)\n", cli.Plain(j.Name), done, textOf("stand", j))
}

func (r *remote) tellDone(j *api.Job, done string) error {
	return r.Tell(r.output, j, doneText(j, done))
}

func jobsRemoveCommand(a *app) *cobra.Command {
	r := remote{app: a}
	return r.jobCommand(a.described("jobs remove", &cobra.Command{}), func(ctx context.Context) error {
		j, err := api.Ask[api.Job](ctx, r.Client, http.MethodDelete, api.At(api.PathJob, r.job), nil)
		return then(err, func() error { return r.tellDone(&j, "will be removed") })
	})
}

// then returns err, or if it is nil the error of next.
func then(err error, next func() error) error {
	if err != nil {
		return err
	}
	return next()
}

func (r *remote) list(ctx context.Context) error {
	list, err := r.Jobs(ctx, "", "")
	return then(err, func() error { return r.Tell(r.output, list, textOf("remote jobs", list)) })
}

func (r *remote) show(ctx context.Context) error {
	if err := r.only(ctx); err != nil {
		return err
	}
	j, err := r.Job(ctx, r.job)
	return then(err, func() error { return r.Tell(r.output, j, remoteText(&j)) })
}

// only chooses the single job of the service, if none is named.
func (r *remote) only(ctx context.Context) error {
	if r.job != "" {
		return nil
	}
	list, err := r.Jobs(ctx, "", "")
	if err != nil {
		return err
	}
	if len(list) != 1 {
		return misuse(fmt.Errorf("%s has %s", r.Server, plural(len(list), "job")), "choose one with --job")
	}
	r.job = list[0].Name
	return nil
}

func remoteText(j *api.Job) string {
	if ofProcess(j) && j.Report != nil && j.Report.Status != nil {
		return textOf("status", *j.Report.Status)
	}
	return textOf("remote job", j)
}

const (
	// logPage is how many entries a request asks for at most.
	logPage = 1000
	// followEvery is how often a log that is followed is looked at.
	followEvery = time.Second
)

type logFlags struct {
	limit          int
	events, follow bool
}

func jobsLogCommand(a *app) *cobra.Command {
	r := remote{app: a}
	var f logFlags
	cmd := a.described("jobs log", &cobra.Command{},
		config.Vars{"limit": &f.limit, "events": &f.events, "follow": &f.follow})
	return r.jobCommand(cmd, func(ctx context.Context) error {
		switch {
		case f.limit < 1 || f.limit > logPage:
			return cli.WithCode(cli.ExitUsage, fmt.Errorf("--limit %d: want 1 to %d", f.limit, logPage))
		case f.follow && r.output != "text":
			return cli.WithCode(cli.ExitUsage, errors.New("--follow cannot go with --output json, which is written at the end"))
		}
		return r.log(ctx, &f)
	})
}

func (r *remote) log(ctx context.Context, f *logFlags) error {
	kind := service.EntryKind("")
	if f.events {
		kind = service.KindEvent
	}
	l, err := r.Log(ctx, r.job, kind, 0, f.limit)
	if err != nil {
		return err
	}
	last := uint64(0)
	if len(l.Entries) > 0 {
		last = l.Entries[0].Seq
	}
	if err := r.Tell(r.output, l, logText(l.Entries)); err != nil || !f.follow {
		return err
	}
	for pace.Pause(ctx, followEvery) == nil { // the end of ctx is how it is ended
		newer, err := r.newer(ctx, kind, last)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // that is how it is ended
		case err != nil:
			return err
		}
		if len(newer) > 0 {
			last = newer[0].Seq
		}
		if _, err := io.WriteString(r.Stdout, logText(newer)); err != nil {
			return err
		}
	}
	return nil
}

func (r *remote) newer(ctx context.Context, kind service.EntryKind, last uint64) (all []service.Entry, err error) {
	for before := uint64(0); ; {
		page, err := r.Log(ctx, r.job, kind, before, logPage)
		if err != nil {
			return nil, err
		}
		old := slices.IndexFunc(page.Entries, func(e service.Entry) bool { return e.Seq <= last })
		if old >= 0 {
			return append(all, page.Entries[:old]...), nil
		}
		all = append(all, page.Entries...)
		if before = page.Next; before == 0 {
			return all, nil
		}
	}
}

func logText(newest []service.Entry) string {
	oldest := slices.Clone(newest)
	slices.Reverse(oldest)
	return textOf("log", oldest)
}

func workersListCommand(a *app) *cobra.Command {
	r := remote{app: a}
	return r.command(a.described("workers list", &cobra.Command{}), func(ctx context.Context) error {
		list, err := r.workers(ctx)
		return then(err, func() error { return r.Tell(r.output, list, textOf("workers", list)) })
	})
}

func (r *remote) workers(ctx context.Context) ([]service.Worker, error) {
	w, err := api.Ask[api.Workers](ctx, r.Client, http.MethodGet, api.PathWorkers, nil)
	return w.Workers, err
}

func (r *remote) drain(ctx context.Context, method, name string) (service.Worker, error) {
	return api.Ask[service.Worker](ctx, r.Client, method, api.At(api.PathDrain, name), nil)
}

func (a *app) workerCommand(cmd *cobra.Command, do func(context.Context, *remote, string) error) *cobra.Command {
	r := remote{app: a}
	var name string
	r.command(cmd, func(ctx context.Context) error { return do(ctx, &r, name) })
	bind(cmd, "worker", config.Vars{"worker": &name})
	_ = cmd.MarkFlagRequired("worker")
	return cmd
}

func workersDrainCommand(a *app) *cobra.Command {
	var wait bool
	return a.workerCommand(a.described("workers drain", &cobra.Command{}, config.Vars{"wait": &wait}),
		func(ctx context.Context, r *remote, name string) error {
			w, err := r.drain(ctx, http.MethodPost, name)
			if err == nil && wait {
				w, err = await(ctx, w, func(w service.Worker) (bool, error) { return len(w.Jobs) == 0, nil },
					func() (service.Worker, error) {
						list, err := r.workers(ctx)
						i := slices.IndexFunc(list, func(o service.Worker) bool { return o.Name == name })
						if err != nil || i < 0 {
							return service.Worker{Name: name}, err // it has ended, and has none
						}
						return list[i], nil
					})
			}
			return then(err, func() error { return r.Tell(r.output, w, cli.Plain(w.Name)+": drained\n") })
		})
}

func workersResumeCommand(a *app) *cobra.Command {
	return a.workerCommand(a.described("workers resume", &cobra.Command{}),
		func(ctx context.Context, r *remote, name string) error {
			w, err := r.drain(ctx, http.MethodDelete, name)
			return then(err, func() error { return r.Tell(r.output, w, cli.Plain(w.Name)+": takes jobs\n") })
		})
}
