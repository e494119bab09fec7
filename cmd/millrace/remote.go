package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/shown"
)

// remote is one run of a command that asks a service: its flags, and its client.
type remote struct {
	server, token, ca, job, output string

	*api.Client
}

// bindServer gives a command the flags that name a service.
func (r *remote) bindServer(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&r.server, "server", "", "`address` of a service, as millrace serve printed it: https://host:port or http://host:port; without a scheme http on this machine, https elsewhere")
	fs.StringVar(&r.token, "token", "", "token of the service; set MILLRACE_TOKEN rather than the flag")
	fs.StringVar(&r.ca, "ca-file", "", "`file` with the authority of the service's certificate, in PEM form; by default the system's authorities")
}

// reach makes the client.
func (r *remote) reach() error {
	if r.server == "" {
		return cli.WithCode(cli.ExitUsage, mongo.WithHint(errors.New("no service is given"), "use --server or set "+config.EnvName("server")))
	}
	if err := server.CheckAddress(r.server); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	r.Client = api.NewClient(r.server, r.token)
	return cli.WithCode(cli.ExitUsage, r.TrustAuthorities(r.ca))
}

// asked gives what a service refuses its exit code.
func asked(err error) error {
	if api.IsRefusal(err) {
		return cli.WithCode(cli.ExitUsage, err)
	}
	return err
}

// remoteCommand makes a command that asks a service.
func (a *app) remoteCommand(cmd *cobra.Command, r *remote, do func(context.Context) error) *cobra.Command {
	r.bindServer(cmd)
	cli.BindOutput(cmd, &r.output, "`form` of the result: text or json", "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := r.reach(); err != nil {
			return err
		}
		defer r.Close()
		return asked(do(cmd.Context()))
	}
	return cmd
}

// remoteJobCommand makes a command that does something to a job of a service.
func (a *app) remoteJobCommand(cmd *cobra.Command, r *remote, do func(context.Context) error) *cobra.Command {
	a.remoteCommand(cmd, r, do)
	cmd.Flags().StringVar(&r.job, "job", "", "`name` of the job")
	_ = cmd.MarkFlagRequired("job")
	_ = cmd.RegisterFlagCompletionFunc("job", func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.completeRemote(cmd.Context(), r), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// completeRemote are the names of a service's jobs; what cannot be asked completes nothing.
func (a *app) completeRemote(ctx context.Context, r *remote) (names []cobra.Completion) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for flag, value := range map[string]*string{"server": &r.server, "token": &r.token, "ca-file": &r.ca} {
		*value = a.uri(flag, *value)
	}
	if r.reach() != nil {
		return nil
	}
	defer r.Close()
	list, _ := r.Jobs(ctx, "", "")
	for i := range list {
		names = append(names, cobra.CompletionWithDesc(list[i].Name, string(list[i].State)))
	}
	return names
}

// orRemote has a command that looks at a target ask a service instead, where --server
// says so. One of both has to be given.
func (a *app) orRemote(cmd *cobra.Command, s *stored, ask func(context.Context, *remote) error) *cobra.Command {
	var r remote
	r.bindServer(cmd)
	look := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		server, err := a.chosen(r.server, s.target)
		if err != nil || !server {
			return then(err, func() error { return look(cmd, args) })
		}
		if err := r.reach(); err != nil {
			return err
		}
		defer r.Close()
		r.job, r.output = s.job, s.output
		return asked(ask(cmd.Context(), &r))
	}
	return cmd
}

// chosen says whether a service is to be asked, and not a target. A flag wins over the
// environment.
func (a *app) chosen(server, target string) (bool, error) {
	hint := "use --server or --target, or set " + config.EnvName("server") + " or " + config.EnvName("target")
	switch {
	case server == "" && target == "":
		return false, cli.WithCode(cli.ExitUsage, mongo.WithHint(errors.New("neither a service nor a target is given"), hint))
	case server == "" || target == "":
		return server != "", nil
	}
	fromEnv := func(flag, value string) bool { return a.uri(flag, "") == value }
	if env := fromEnv("server", server); env != fromEnv("target", target) {
		return !env, nil
	}
	return false, cli.WithCode(cli.ExitUsage, mongo.WithHint(errors.New("both a service and a target are given"), "give one of --server and --target"))
}

func (a *app) jobsCreateCommand() *cobra.Command {
	var r remote
	var name, file string
	var labels []string
	var paused bool
	cmd := a.remoteCommand(&cobra.Command{
		Use:   "create --server URL --name NAME --file FILE",
		Short: "Give a job to a service",
		Long: `Defines a job for a service of many jobs (millrace serve). The file has the
settings of millrace sync, as sync --config takes them. A connection string with a
password is refused: write env:NAME or file:NAME, which the workers read.

The same definition once more is the same job. Another one under the same name is
refused, with exit code 2.`,
		Example: `  millrace jobs create --server 127.0.0.1:8470 --name orders --file orders.yaml
  millrace jobs create --name orders --file orders.yaml --label dc=east --paused`,
	}, &r, func(ctx context.Context) error { return a.createJob(ctx, &r, file, name, labels, paused) })
	fs := cmd.Flags()
	fs.StringVar(&name, "name", "", "`name` of the job")
	fs.StringVarP(&file, "file", "f", "", "`file` with the job's settings; - is standard input")
	fs.StringArrayVar(&labels, "label", nil, "`key=value` that a worker must have to run the job; may be repeated")
	fs.BoolVar(&paused, "paused", false, "it waits until it is resumed")
	_ = errors.Join(cmd.MarkFlagRequired("name"), cmd.MarkFlagRequired("file"))
	return cmd
}

func (a *app) createJob(ctx context.Context, r *remote, file, name string, labels []string, paused bool) error {
	n := api.NewJob{Name: name, Paused: paused}
	var err error
	if n.Labels, err = service.ParseLabels(labels); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	text, err := settingsFile(file)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	if n.Settings, err = json.Marshal(text); err != nil {
		return err
	}
	j, made, err := r.Create(ctx, n)
	if err != nil {
		return err
	}
	done := "created"
	if !made {
		done = "is there already"
	}
	return a.Tell(r.output, j, doneText(&j, done))
}

// settingsFile reads the settings of a job.
func settingsFile(file string) (string, error) {
	in := io.Reader(os.Stdin)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("read the settings: %w", err)
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, service.MaxSettings+1))
	if err != nil {
		return "", fmt.Errorf("read the settings: %w", err)
	}
	if len(raw) > service.MaxSettings {
		return "", mongo.WithHint(fmt.Errorf("%s is larger than %d bytes", file, service.MaxSettings), "check the path")
	}
	return string(raw), nil
}

// doneText says what was done to a job.
func doneText(j *api.Job, done string) string {
	return fmt.Sprintf("%s: %s (%s)\n", cli.Plain(j.Name), done, remoteState(&j.Summary))
}

func (a *app) jobsRemoveCommand() *cobra.Command {
	var r remote
	return a.remoteJobCommand(&cobra.Command{
		Use:   "remove --server URL --job NAME",
		Short: "Have a service forget a job",
		Long: `Has the service forget a job, once no worker runs it. What it has copied, its
checkpoint and its dead letters stay on its target: defined again under the same
name, source and target it goes on from there. millrace jobs drop removes what the
target knows of it.`,
		Example: `  millrace jobs remove --job orders`,
	}, &r, func(ctx context.Context) error {
		j, err := r.Remove(ctx, r.job)
		return then(err, func() error { return a.Tell(r.output, j, doneText(&j, "is to be forgotten")) })
	})
}

// then is the first of two errors; what gives the second is not called after one.
func then(err error, next func() error) error {
	if err != nil {
		return err
	}
	return next()
}

func (a *app) listRemote(ctx context.Context, r *remote) error {
	list, err := r.Jobs(ctx, "", "")
	if err != nil {
		return err
	}
	return a.Tell(r.output, list, remoteList(list))
}

func (a *app) showRemote(ctx context.Context, r *remote) error {
	if err := r.only(ctx); err != nil {
		return err
	}
	j, err := r.Job(ctx, r.job)
	return then(err, func() error { return a.Tell(r.output, j, remoteText(&j)) })
}

// only chooses the one job that there is, where none is named.
func (r *remote) only(ctx context.Context) error {
	if r.job != "" {
		return nil
	}
	list, err := r.Jobs(ctx, "", "")
	if err != nil {
		return err
	}
	if len(list) != 1 {
		return cli.WithCode(cli.ExitUsage, mongo.WithHint(fmt.Errorf("%s has %s", r.server, plural(len(list), "job")), "choose one with --job"))
	}
	r.job = list[0].Name
	return nil
}

// remoteState is how a job stands, and what is wished for that it is not yet.
func remoteState(s *api.Summary) string {
	text := string(s.State)
	if s.Phase != "" && s.State == service.Running {
		text += ", " + string(s.Phase)
	}
	switch {
	case s.Removed:
		text += ", to be forgotten"
	case s.Paused && s.State != service.Paused && s.State != service.Finished:
		text += ", to pause"
	case s.Finalize && s.State != service.Finished:
		text += ", to be finalized"
	}
	return text
}

func remoteList(list []api.Summary) string {
	if len(list) == 0 {
		return "the service has no job\n"
	}
	t := newTable("job", "state", "worker", "copied", "behind", "docs/s", "ops/s", "open letters", "error")
	for i := range list {
		s := &list[i]
		copied, behind := "", ""
		if s.Phase != "" {
			copied, behind = fmt.Sprintf("%.0f%%", s.CopyPercent), shown.Seconds(s.LagSeconds)
		}
		t.AppendRow(table.Row{s.Name, remoteState(s), s.Worker, copied, behind, shown.Count(s.DocsRate), shown.Count(s.OperationsRate), s.Conflicts, cut(cli.Plain(cmp.Or(s.Error, s.Unmet)), 60)})
	}
	alignRight(t, 4, 5, 6, 7, 8)
	return t.Render() + "\n"
}

func remoteText(j *api.Job) string {
	if ofProcess(j) && j.Report != nil && j.Report.Status != nil {
		return statusText(*j.Report.Status)
	}
	t := facts{newTable(j.Name, remoteState(&j.Summary))}
	t.add("worker", j.Worker)
	for _, k := range slices.Sorted(maps.Keys(j.Labels)) {
		t.add("label", k+"="+j.Labels[k])
	}
	t.add("defined", j.CreatedAt.Format(time.RFC3339)+" by "+cli.Plain(j.CreatedBy))
	if j.ReportedAt != nil {
		t.add("last report", agoText(*j.ReportedAt))
	}
	t.add("cannot be met", j.Unmet)
	t.add("error", j.Error)
	t.add("hint", j.Hint)
	text := t.Render() + "\n"
	if j.Report != nil && len(j.Report.Checks) > 0 {
		for _, c := range j.Report.Checks {
			text += cli.Plain(fmt.Sprintf("%s: %s: %s", c.Level, c.Name, c.Message)) + "\n"
		}
	}
	if j.Report != nil && j.Report.Status != nil {
		text += statusText(*j.Report.Status)
	}
	return text
}
