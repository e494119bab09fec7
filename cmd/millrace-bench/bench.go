package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/mongo"
	benchmark "github.com/millrace/millrace/workshop/bench"
)

type benchSettings struct {
	scale, output, report string
	peers, peerArgs       []string
	variants              []string
	yes                   bool // the given clusters are meant
	options               benchmark.Options
}

func (a *app) benchCommand() *cobra.Command {
	var s benchSettings
	cmd := &cobra.Command{
		Use:   "bench SCENARIO… | all",
		Short: "Measure millrace against what the servers allow, and against other tools",
		Long: `Measures scenarios on real servers. Each round measures in turn the ceiling,
millrace as a process of its own, and other tools whose programs are given. The
ceiling is lean code that asks the least work of the servers. The command prints
medians over the rounds, and what exactly was measured.

Servers are started on this machine for the time of a scenario. With
--source-uri, --target-uri and --yes the given clusters are used. The bench drops
and fills their database mrbench, so never give it clusters in use.

A small scale shows that everything works. Its figures mean little: the start of
a process takes longer than the work. Measure on a machine that does
nothing else.`,
		Example: `  millrace-bench bench list
  millrace-bench bench full-one --scale small
  millrace-bench bench full-one incr-backlog --rounds 5 --peer mongodump=/usr/bin/mongodump --report bench.html --output html
  millrace-bench bench full-one --target-topology rs:3 --peer mongoshake-published=collector --variant "source spared=--source-load=low"
  millrace-bench bench topology --nodes 3,7 --write-concern 1,majority --scale medium --rounds 2
  millrace-bench bench seed --scale medium --output html --report seed.html
  millrace-bench bench service --scale medium --rounds 1 --jobs 100
  millrace-bench bench all --scale medium --report results.json --output json`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: scenarios,
		RunE: func(cmd *cobra.Command, args []string) error {
			s.options.Scenarios = args
			return a.bench(cmd, &s)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.scale, "scale", "small",
		"`size` of the work: small, medium (a million documents), large (ten million), or how many times medium")
	f.IntVar(&s.options.Rounds, "rounds", 3, "rounds of each contender")
	f.StringArrayVar(&s.peers, "peer", nil, "a tool that takes part, as `name=program`; may be repeated; "+
		benchmark.PeerNames())
	f.StringArrayVar(&s.peerArgs, "peer-arg", nil, "a `setting` of a tool that takes part and has a configuration file, "+
		"as name:key=value, such as mongoshake:incr_sync.worker=16; may be repeated")
	f.StringVar(&s.options.Servers.Source, "source-uri", "",
		"connection string `URI` of a source to use instead of servers started here; its database mrbench is dropped")
	f.StringVar(&s.options.Servers.Target, "target-uri", "",
		"connection string `URI` of a target to use instead of servers started here; its database mrbench is dropped")
	f.BoolVar(&s.yes, "yes", false,
		"yes, drop and fill the database mrbench of the clusters that --source-uri and --target-uri name")
	f.StringVar(&s.options.Servers.Version, "mongod", "6.0", "version of the servers started here")
	f.StringVar(&s.options.Servers.SourceTopology, "source-topology", "",
		"what the source started here is: rs:N, and in sharded scenarios sharded:SxM as well (default rs:1; those measure "+
			"three pairs of sharded and not)")
	f.StringVar(&s.options.Servers.TargetTopology, "target-topology", "", "the same of the target")
	f.StringArrayVar(&s.options.MillraceArgs, "millrace-arg", nil,
		"an `argument` more for the millrace sync that is measured, such as --write-concern=1; may be repeated")
	f.StringArrayVar(&s.variants, "variant", nil, "measure millrace with other arguments, too, as `name=arguments` of "+
		"its sync, such as \"source spared=--source-load=low\"; may be repeated")
	s.bindScenarios(f)
	f.StringVar(&s.options.Millrace, "millrace", "",
		"the millrace `program` to measure; by default the one beside this program, or on PATH")
	cli.BindOutput(cmd, &s.output, "text", "json", "html")
	f.StringVar(&s.report, "report", "",
		"write the result to this `file`, too; unless that is JSON, standard output has a table")
	cmd.AddCommand(a.benchListCommand(), a.benchShowCommand(), a.benchPublishedCommand())
	return cmd
}

func (s *benchSettings) bindScenarios(f *pflag.FlagSet) {
	f.IntSliceVar(&s.options.Topology.Nodes, "nodes", []int{3},
		"members of the sets that the scenario topology measures, each 3 to 50")
	f.StringSliceVar(&s.options.Topology.WriteConcerns, "write-concern", []string{"1", "majority"},
		"write concerns that the scenario topology measures")
	f.IntVar(&s.options.Topology.Clients, "clients", 8, "clients that write at once in the scenario topology")
	f.IntVar(&s.options.Topology.PrimaryCores, "primary-cores", 1,
		"processors that the primary has to itself in the scenario topology; 0 shares all")
	f.Float64Var(&s.options.Topology.PrimaryShare, "primary-share", 1, "part of these processors that it may use, such "+
		"as 0.4, so that it is full before the others are, as on hosts of their own; below 1 needs root and Linux")
	f.DurationSliceVar(&s.options.Topology.LinkRTTs, "link-rtt", []time.Duration{0},
		"round trips between members in the scenario topology, as if each had a host of its own")
	f.IntVar(&s.options.Service.Definitions, "definitions", 1000, "jobs that the service knows in the scenario service")
	f.IntVar(&s.options.Service.Jobs, "jobs", 100, "those of them that follow, each a database of its own, in the "+
		"scenario service; of the others a half is paused, and a half waits")
	f.IntVar(&s.options.Service.Workers, "workers", 2, "processes that run the jobs in the scenario service, beside serve")
	f.Float64Var(&s.options.Service.Requests, "request-rate", 50, "requests a second to the API in the scenario service")
	f.Float64Var(&s.options.Service.Writes, "job-writes", 3,
		"writes a second to the source of each job in the scenario service, where it is written")
	f.StringSliceVar(&s.options.Cells, "cells", nil,
		"`cells` of the matrix that the scenario seed measures, as collections x indexes: 1x5,100x5; by default all")
}

// scenarios has the shell offer them.
func scenarios(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names := []string{"all"}
	for _, s := range benchmark.Scenarios() {
		names = append(names, s.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) benchListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the scenarios",
		RunE: func(*cobra.Command, []string) error {
			t := table.NewWriter()
			t.SetStyle(table.StyleLight)
			t.Style().Format.Header = text.FormatDefault
			t.AppendHeader(table.Row{"scenario", "work", "ceiling"})
			t.SetColumnConfigs([]table.ColumnConfig{{Number: 2, WidthMax: 60}, {Number: 3, WidthMax: 60}})
			for _, s := range benchmark.Scenarios() {
				t.AppendRow(table.Row{s.Name, s.Work, s.Ceiling})
			}
			return a.Tell(output, benchmark.Scenarios(), t.Render()+"\n")
		},
	}
	cli.BindOutput(cmd, &output, "text", "json")
	return cmd
}

func (a *app) benchShowCommand() *cobra.Command {
	var output, picture string
	cmd := &cobra.Command{
		Use:   "show FILE...",
		Short: "Show JSON reports of benches of one machine as a table, a page or a picture",
		Example: `  millrace-bench bench show results.json --output html > results.html
  millrace-bench bench show results.json --output svg --case full-one > full-one.svg`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: cli.Files,
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := readBench(args)
			if err != nil {
				return err
			}
			if output == "svg" {
				return benchmark.WriteSVG(a.Stdout, r, picture)
			}
			return a.writeBenchAs(a.Stdout, output, r)
		},
	}
	cli.BindOutput(cmd, &output, "text", "json", "html", "svg")
	cmd.Flags().StringVar(&picture, "case", "",
		"with svg: draw the contenders of this case; by default millrace's share of each ceiling")
	return cmd
}

func readBench(files []string) (*benchmark.Report, error) {
	var all []*benchmark.Report
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read report: %w", err)
		}
		var r benchmark.Report
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, fmt.Errorf("read report %s: %w", file, err)
		}
		all = append(all, &r)
	}
	return benchmark.Join(all)
}

func (a *app) writeBenchAs(w io.Writer, form string, r *benchmark.Report) error {
	switch form {
	case "json":
		return a.Tell(form, r, "")
	case "html":
		return benchmark.WriteHTML(w, r)
	}
	return benchmark.WriteText(w, r)
}

// bench checks the flags, measures and writes the result.
func (a *app) bench(cmd *cobra.Command, s *benchSettings) (err error) {
	if err := s.complete(); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	if s.output == "json" {
		a.Results.Report = s.report
	}
	s.options.Version = cli.BuildInfo().Version
	s.options.Command = "millrace-bench bench " + strings.Join(s.commandLine(), " ")
	s.options.Progress = func(line string) { fmt.Fprintln(a.Stderr, cli.Plain(line)) }
	report, err := benchmark.Run(cmd.Context(), s.options)
	if report == nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	return cli.WithCode(cli.ExitFailure, errors.Join(err, a.writeBench(s, report)))
}

func (s *benchSettings) complete() (err error) {
	if s.options.Scale, err = benchmark.ParseScale(s.scale); err != nil {
		return err
	}
	if s.options.Peers, err = parseAll(s.peers, benchmark.ParsePeer); err != nil {
		return err
	}
	for _, arg := range s.peerArgs {
		if err := benchmark.SetPeer(s.options.Peers, arg); err != nil {
			return err
		}
	}
	if s.options.Variants, err = parseAll(s.variants, benchmark.ParseVariant); err != nil {
		return err
	}
	if err := canWrite("--report", s.report); err != nil {
		return err
	}
	if (s.options.Servers.Source == "") != (s.options.Servers.Target == "") {
		return errors.New("--source-uri and --target-uri belong together")
	}
	if s.options.Servers.Source != "" && !s.yes {
		return mongo.WithHint(
			errors.New("the bench drops and fills the database mrbench of the given clusters, and keeps them busy"),
			"give --yes if they are not in use, or leave --source-uri and --target-uri out to have servers started here")
	}
	s.options.Millrace, s.options.Router, err = programs(s.options.Millrace)
	return err
}

// parseAll reads the values of a flag that may be repeated.
func parseAll[T any](texts []string, parse func(string) (T, error)) (all []T, err error) {
	for _, text := range texts {
		one, err := parse(text)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// commas writes a list as a flag takes it.
func commas(list any) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
}

// programs returns the measured millrace (by default beside this program, or on PATH) and this program.
func programs(millrace string) (product, self string, err error) {
	if self, err = os.Executable(); err != nil || millrace != "" {
		return millrace, self, err
	}
	beside := filepath.Join(filepath.Dir(self), "millrace")
	if product, err = exec.LookPath(beside); err == nil {
		return product, self, nil
	}
	if product, err = exec.LookPath("millrace"); err != nil {
		return "", "", mongo.WithHint(fmt.Errorf("cannot find millrace: neither %s nor on PATH", beside),
			"name the program with --millrace")
	}
	return product, self, nil
}

// commandLine is the command line for the report, without addresses, which may hold passwords, and without directories.
func (s *benchSettings) commandLine() []string {
	args := append([]string{}, s.options.Scenarios...)
	args = append(args, "--scale "+s.scale, fmt.Sprintf("--rounds %d", s.options.Rounds))
	for _, p := range s.options.Peers {
		if p.Program == "" {
			args = append(args, "--peer "+p.Name)
			continue
		}
		args = append(args, "--peer "+p.Name+"="+filepath.Base(p.Program))
	}
	for _, arg := range s.peerArgs {
		args = append(args, "--peer-arg "+arg)
	}
	for _, v := range s.options.Variants {
		args = append(args, fmt.Sprintf("--variant \"%s=%s\"", v.Name, strings.Join(v.Args, " ")))
	}
	if s.options.Servers.Source != "" {
		return append(args, "--source-uri … --target-uri … --yes")
	}
	args = append(args, "--mongod "+s.options.Servers.Version)
	add := func(flag, value string) {
		if value != "" {
			args = append(args, flag+" "+value)
		}
	}
	add("--source-topology", s.options.Servers.SourceTopology)
	add("--target-topology", s.options.Servers.TargetTopology)
	if slices.Contains(s.options.Scenarios, "topology") {
		o := s.options.Topology
		args = append(args, "--nodes "+commas(o.Nodes), "--write-concern "+strings.Join(o.WriteConcerns, ","),
			fmt.Sprintf("--clients %d --primary-cores %d --primary-share %g --link-rtt %s", o.Clients, o.PrimaryCores,
				o.PrimaryShare, commas(o.LinkRTTs)))
	}
	if slices.Contains(s.options.Scenarios, "service") {
		o := s.options.Service
		args = append(args, fmt.Sprintf("--definitions %d --jobs %d --workers %d --request-rate %g --job-writes %g",
			o.Definitions, o.Jobs, o.Workers, o.Requests, o.Writes))
	}
	add("--cells", strings.Join(s.options.Cells, ","))
	for _, m := range s.options.MillraceArgs {
		args = append(args, "--millrace-arg "+m)
	}
	return args
}

func (a *app) writeBench(s *benchSettings, r *benchmark.Report) error {
	if s.report == "" || s.output == "json" {
		return a.writeBenchAs(a.Stdout, s.output, r)
	}
	if err := writeFile(s.report, func(w io.Writer) error { return a.writeBenchAs(w, s.output, r) }); err != nil {
		return err
	}
	return benchmark.WriteText(a.Stdout, r)
}
