package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/outfile"
	"github.com/millrace/millrace/workshop/ycsb"
)

// envYCSBURL is where the address comes from when no property names it.
const envYCSBURL = "MILLRACE_YCSB_URL"

// ycsbSettings are the flags of `millrace-bench ycsb load` and `run`.
type ycsbSettings struct {
	files, properties    []string
	threads              int
	target               float64
	status               bool
	label, output, chart string
	seed                 uint64
}

func (a *app) ycsbCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ycsb",
		Short: "Load and measure a server with the workloads of YCSB",
		Long: `Loads and measures a server with the workloads of the Yahoo Cloud Serving
Benchmark. Workload files, properties, flags (-threads and --threads alike), keys
and lines of output are those of the Java tool. docs/reference/benchmarks.md says
what is not.

The server is named by -p mongodb.url=…, in a workload file, or in the
environment as ` + envYCSBURL + ` (a password is seen by others in a flag). The
database of the address is used, or ycsb when it has none.`,
		Example: `  millrace-bench ycsb load mongodb -s -P workloads/workloada -p recordcount=100000 -threads 8
  millrace-bench ycsb run mongodb -s -P workloads/workloada -p operationcount=1000000 -threads 32 -target 20000
  millrace-bench ycsb matrix --threads 8,32 -p recordcount=100000
  millrace-bench ycsb matrix --published 0.1 a=mongodb://a:27017/ycsb b=mongodb://b:27017/ycsb`,
	}
	cmd.AddCommand(a.ycsbPhaseCommand(ycsb.Load), a.ycsbPhaseCommand(ycsb.Run), a.ycsbMatrixCommand())
	return cmd
}

func (a *app) ycsbPhaseCommand(phase ycsb.Phase) *cobra.Command {
	var s ycsbSettings
	cmd := &cobra.Command{
		Use:       string(phase) + " mongodb",
		ValidArgs: []string{"mongodb", "mongodb-async"},
		Args:      cobra.MatchAll(cli.OneArg("database"), cobra.OnlyValidArgs),
		RunE:      func(cmd *cobra.Command, _ []string) error { return a.ycsbPhase(cmd.Context(), cmd.Flags(), phase, &s) },
	}
	if phase == ycsb.Load {
		cmd.Short = "Insert the records of a workload"
		cmd.Long = `Inserts the records of a workload. A load that was stopped says how to go on.`
		cmd.Example =
			`  millrace-bench ycsb load mongodb -s -P workloads/workloada -p recordcount=1000000 -p batchsize=100 -threads 4
  millrace-bench ycsb load mongodb -P workloads/workloada -p insertstart=400000 -p insertcount=600000 -p recordcount=1000000 -p mongodb.upsert=true`
	} else {
		cmd.Short = "Run the operations of a workload and measure them"
		cmd.Long = `Runs the operations of a workload and measures them. With -target, latency is
also given from the moment at which an operation was due (Intended-READ and so
on). So a server that stalls cannot hide the operations it kept waiting.`
		cmd.Example = `  millrace-bench ycsb run mongodb -s -P workloads/workloadb -p operationcount=1000000 -threads 16
  millrace-bench ycsb run mongodb -P workloads/workloada -p maxexecutiontime=60 -p operationcount=0 -target 5000 --output json --chart run.html`
	}
	f := cmd.Flags()
	s.common(f)
	f.IntVar(&s.threads, "threads", 0, "`number` of threads, each with one operation at a time (property threadcount)")
	f.Float64Var(&s.target, "target", 0, "operations a second of all threads together, 0 for as many as possible "+
		"(property target; in the environment MILLRACE_YCSB_TARGET)")
	config.Variables(f, "target", "MILLRACE_YCSB_TARGET")
	f.BoolVarP(&s.status, "status", "s", false,
		"write a status line to standard error every 10 s (property status.interval)")
	f.StringVarP(&s.label, "label", "l", "", "`text` in each status line")
	cli.BindOutput(cmd, &s.output, "text", "json")
	f.StringVar(&s.chart, "chart", "", "write a page with charts over time to this `file`")
	f.Uint64Var(&s.seed, "seed", 0, "`seed` of all that is drawn, 0 for another one each time")
	for _, java := range []string{"cp", "jvm-args"} { // a script may give them
		f.String(java, "", "has no meaning here")
		_ = f.MarkHidden(java)
	}
	return cmd
}

// common are the flags of all commands that read a workload.
func (s *ycsbSettings) common(f *pflag.FlagSet) {
	f.StringArrayVarP(&s.files, "file", "P", nil,
		"workload `file` with properties; may be repeated. workloada to workloadf are built in")
	f.StringArrayVarP(&s.properties, "property", "p", nil,
		"a property, `name=value`, that wins over files; may be repeated")
	config.Variables(f, "property", config.EnvName("property"), envYCSBURL)
}

func (s *ycsbSettings) read(lookupEnv func(string) (string, bool)) (ycsb.Properties, error) {
	p := ycsb.Properties{}
	for _, file := range s.files {
		if err := p.ReadFile(file); err != nil {
			return nil, err
		}
	}
	for _, one := range s.properties {
		if err := p.Set(one); err != nil {
			return nil, err
		}
	}
	if url, ok := lookupEnv(envYCSBURL); ok && url != "" && p["mongodb.url"] == "" {
		p["mongodb.url"] = url
	}
	return p, nil
}

func (a *app) ycsbPhase(ctx context.Context, f *pflag.FlagSet, phase ycsb.Phase, s *ycsbSettings) (err error) {
	p, err := s.read(a.LookupEnv)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	if f.Changed("threads") {
		p["threadcount"] = strconv.Itoa(s.threads)
	}
	if f.Changed("target") {
		p["target"] = strconv.FormatFloat(s.target, 'g', -1, 64)
	}
	if err := errors.Join(canWrite("--chart", s.chart), canWrite("exportfile", p["exportfile"])); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	o := ycsb.Options{Phase: phase, Properties: p, Label: s.label, Seed: s.seed,
		Log: slog.New(slog.NewTextHandler(a.Stderr, nil))}
	if s.status {
		o.Status = a.Stderr
	}
	if s.output == "text" {
		o.Raw = a.Stdout
	}
	report, err := ycsb.Execute(ctx, o)
	if report == nil {
		return cli.WithCode(ycsbCode(err), err)
	}
	if report.Interrupted && err == nil {
		err = context.Cause(ctx)
	}
	if report.Resume != nil && mongo.HintOf(err) == "" {
		fmt.Fprintf(a.Stderr, "millrace: the load ended early; %s\n", report.Resume.Hint())
	}
	if err == nil && report.Operations > 0 && report.Failed >= report.Operations {
		err = fmt.Errorf("all operations failed, the first with: %s", cli.Plain(report.FirstError))
	}
	return cli.WithCode(cli.ExitFailure, errors.Join(err, a.writeYCSB(s, p["exportfile"], report,
		func(w io.Writer) error { return ycsb.WriteText(w, report) },
		func(w io.Writer) error { return ycsb.WriteHTML(w, report) })))
}

func ycsbCode(err error) int {
	if errors.Is(err, ycsb.ErrProperties) {
		return cli.ExitUsage
	}
	return cli.ExitFailure
}

// writeYCSB writes a result in the form and to the places that are wanted.
func (a *app) writeYCSB(s *ycsbSettings, file string, v any, text, page func(io.Writer) error) error {
	write := text
	if s.output == "html" {
		write = page
	}
	var err error
	switch {
	case s.output == "json":
		err, a.Results.Report = a.Tell(s.output, v, ""), file
	case file != "":
		err = writeFile(file, write)
	default:
		err = write(a.Stdout)
	}
	if s.chart != "" {
		err = errors.Join(err, writeFile(s.chart, page))
	}
	return err
}

// canWrite says before the work that a result could not be kept.
func canWrite(name, path string) error {
	if path == "" {
		return nil
	}
	return mongo.Wrap(outfile.Check(path), "%s %s cannot be written", name, path)
}

func writeFile(path string, write func(io.Writer) error) error {
	return mongo.Wrap(outfile.Write(path, write), "write result %s", path)
}

type matrixSettings struct {
	ycsbSettings
	o                ycsb.MatrixOptions
	mixes            []string
	records          int64
	published        float64
	peer             string
	byCount, threads bool // what was given
}

func (a *app) ycsbMatrixCommand() *cobra.Command {
	var s matrixSettings
	cmd := &cobra.Command{
		Use:   "matrix [NAME=URI ...]",
		Args:  cobra.ArbitraryArgs,
		Short: "Measure mixes of reads and writes, and compare servers",
		Long: `Measures each mix of reads and updates with each number of threads: throughput,
read average latency (RAL) and write average latency (WAL), in microseconds.
Records that are missing are loaded first. Properties choose the server, the
records and the distribution, as in load and run.

With --operations a cell is so many operations and not a time, and the load of
an empty collection is measured too. --published has the counts and the form of
the published tables: records are loaded one by one, then each mix is run, by 8
threads, zipfian.

Servers named NAME=URI are measured in turn and compared with the first: the
differences in percent of each mix and column, and charts.

--peer has the Java tool drive the same load beside millrace: the same keys and
counts. The processor time of both clients is in the table.`,
		Example: `  millrace-bench ycsb matrix -p mongodb.url=mongodb://localhost:27017/ycsb?w=majority -p recordcount=100000 --threads 8,32
  millrace-bench ycsb matrix -P workloads/workloada --read-write 100:0,50:50,0:100 --threads 16 --each 30s --rounds 3 --chart matrix.html
  millrace-bench ycsb matrix --published 0.1 --rounds 3 a=mongodb://a:27017/ycsb b=mongodb://b:27017/ycsb --chart compared.html
  millrace-bench ycsb matrix --published 0.1 --peer ycsb=/opt/ycsb-0.17.0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f := cmd.Flags()
			s.threads, s.byCount = f.Changed("threads"), f.Changed("published") || f.Changed("operations")
			if err := errors.Join(s.options(a.LookupEnv, args), canWrite("--chart", s.chart)); err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			s.o.Progress = func(line string) { fmt.Fprintln(a.Stderr, cli.Plain(line)) }
			return a.ycsbMatrix(cmd.Context(), &s)
		},
	}
	f := cmd.Flags()
	s.common(f)
	s.flags(f)
	cli.BindOutput(cmd, &s.output, "text", "json", "html")
	return cmd
}

func (s *matrixSettings) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&s.mixes, "read-write", []string{"100:0", "95:5", "50:50", "5:95", "0:100"},
		"`mixes` of reads and updates")
	f.IntSliceVar(&s.o.Threads, "threads", []int{1, 8, 32},
		"`numbers` of threads; 8 alone with --operations or --published")
	f.DurationVar(&s.o.Each, "each", 10*time.Second, "how long a cell is measured, in whole seconds")
	f.Int64Var(&s.o.Operations, "operations", 0, "operations of a cell, in place of --each; 0 for a time")
	f.Int64Var(&s.records, "records", 0, "records (property recordcount)")
	f.Float64Var(&s.published, "published", 0, "the form of the published tables with this `part` of their counts; 1 is "+
		"1,000,000 records and 5,000,000 operations a mix")
	f.DurationVar(&s.o.WarmUp, "warm-up", 3*time.Second,
		"how long the server is warmed up before; 0 for not at all, as with --operations or --published")
	f.IntVar(&s.o.Rounds, "rounds", 1, "rounds; a cell is the median of its rounds")
	f.StringVar(&s.peer, "peer", "",
		"the Java tool beside millrace: ycsb=`PATH` of its directory, its script or a jar of it all")
	f.StringVar(&s.chart, "chart", "", "write a page with the tables and charts to this `file`")
	f.Uint64Var(&s.seed, "seed", 0, "`seed` of all that is drawn, 0 for another one each time")
}

func (s *matrixSettings) options(lookupEnv func(string) (string, bool), servers []string) (err error) {
	o := &s.o
	if o.Properties, err = s.read(lookupEnv); err != nil {
		return err
	}
	if o.Mixes, err = parseAll(s.mixes, ycsb.ParseMix); err != nil {
		return err
	}
	if o.Servers, err = parseAll(servers, ycsb.ParseServer); err != nil {
		return err
	}
	if s.peer != "" {
		if o.Peer, err = ycsb.ParsePeer(s.peer); err != nil {
			return err
		}
	}
	s.counts()
	o.Seed = s.seed
	switch {
	case len(o.Threads) == 0 || len(o.Mixes) == 0 || slices.Min(o.Threads) < 1 || o.Rounds < 1 || o.Each < time.Second:
		return errors.New("--read-write, --threads and --rounds want at least one, --each at least 1s")
	case o.Operations < 0 || s.records < 0 || s.published < 0:
		return errors.New("--operations, --records and --published cannot be negative")
	}
	return nil
}

// counts fills in what the published form has where nothing else is said.
func (s *matrixSettings) counts() {
	o := &s.o
	if s.byCount {
		o.WarmUp, o.Properties = 0, o.Properties.Zipfian()
		if !s.threads {
			o.Threads = []int{ycsb.PublishedThreads}
		}
	}
	if s.published > 0 {
		like := ycsb.Published(o.Properties, s.published)
		o.Properties = like.Properties
		if o.Operations == 0 {
			o.Operations = like.Operations
		}
	}
	if s.records > 0 {
		o.Properties = o.Properties.With("recordcount", strconv.FormatInt(s.records, 10))
	}
}

func (a *app) ycsbMatrix(ctx context.Context, s *matrixSettings) error {
	result, err := ycsb.RunMatrix(ctx, s.o)
	if err != nil {
		return cli.WithCode(ycsbCode(err), err)
	}
	return a.writeYCSB(&s.ycsbSettings, "", result, result.WriteText, result.WriteHTML)
}

// javaFlags lets long flags of the Java tool have one dash in arguments of `millrace-bench ycsb`.
func javaFlags(args []string) []string {
	if len(args) == 0 || args[0] != "ycsb" {
		return args
	}
	args = slices.Clone(args)
	for i, arg := range args[1:] {
		name, _, _ := strings.Cut(arg, "=")
		switch name {
		case "-threads", "-target", "-label", "-cp", "-jvm-args":
			args[i+1] = "-" + arg
		}
	}
	return args
}
