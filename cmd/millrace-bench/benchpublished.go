package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/mongo"
	benchmark "github.com/millrace/millrace/workshop/bench"
	"github.com/millrace/millrace/workshop/published"
)

const javaPeer = "ycsb"

// reports is where this repository keeps its measurements.
func reports() string { return filepath.Join("docs", "reports") }

func publishedResults() string { return filepath.Join(reports(), "published.json") }

type publishedFiles struct{ results, page string }

func (p *publishedFiles) flags(f *pflag.FlagSet) {
	f.StringVar(&p.results, "results", publishedResults(), "`file` of what was measured")
	f.StringVar(&p.page, "page", filepath.Join(reports(), "published.md"),
		"`file` of the page; its charts are written to the directory img beside it")
}

// publishedSettings are the flags of `millrace-bench bench published`.
type publishedSettings struct {
	publishedFiles
	numbers       []int
	scale, output string
	peers         []string
	options       published.Options
	tables        []published.Table
	known         *published.Results
}

func (a *app) benchPublishedCommand() *cobra.Command {
	var s publishedSettings
	cmd := &cobra.Command{
		Use:   "published",
		Short: "Measure what others have published, and write both side by side",
		Long: `Reproduces five published tables, scaled to this machine, and writes a page. Each
cell has the published figure and ratio, those of here, and why they differ. What
cannot be measured here has a row that says so.

  1  DTS against MongoShake: full copies and changes onto three members
  2  YCSB: mixes of reads and writes, kinds of instance
  3  file copy against logical initial sync
  4  DDT: threads and caches
  5  chained replication: 3, 7 and 15 members, chaining on and off

Results are kept table by table: --table 3 replaces those of the third, and the
page is written from all. A table that fails keeps the results that it had. A run
that is cut off keeps what it has measured of a table that had none, or fewer
figures of another such run.
Measure on a machine that does nothing else.`,
		Example: `  millrace-bench bench published --scale medium --rounds 3 --peer mongoshake=/path/to/collector --peer ycsb=/path/to/ycsb
  millrace-bench bench published --table 3,5 --scale small
  millrace-bench bench published compare old.json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.published(cmd, &s) },
	}
	f := cmd.Flags()
	f.IntSliceVar(&s.numbers, "table", []int{1, 2, 3, 4, 5}, "`numbers` of the tables that are measured")
	f.StringVar(&s.scale, "scale", "small", "`size` of the work: tiny (which shows that it works), small, medium, "+
		"large, or how many times medium; the page says what of the published size that is")
	f.IntVar(&s.options.Rounds, "rounds", 3, "rounds of each measurement")
	f.StringArrayVar(&s.peers, "peer", nil, "a tool that takes part where a table has it, as `name=program`: mongoshake "+
		"(its collector; with the published settings and with its own), ycsb (the Java tool); may be repeated")
	f.StringVar(&s.options.Servers.Version, "mongod", "6.0", "version of the servers started here")
	f.StringVar(&s.options.Millrace, "millrace", "",
		"the millrace `program` to measure; by default the one beside this program, or on PATH")
	s.flags(f)
	cli.BindOutput(cmd, &s.output, "text", "json")
	cmd.AddCommand(a.publishedRenderCommand(), a.publishedCompareCommand())
	return cmd
}

// published checks the flags, measures and writes results and page.
func (a *app) published(cmd *cobra.Command, s *publishedSettings) error {
	if err := s.complete(); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	s.options.Version = cli.BuildInfo().Version
	s.options.Command = "millrace-bench bench published " + strings.Join(s.commandLine(), " ")
	s.options.Progress = func(line string) { fmt.Fprintln(a.Stderr, cli.Plain(line)) }
	measured := false
	err := published.Run(cmd.Context(), s.tables, s.options, published.Runners(),
		func(t *published.Table, m *published.Measured) error {
			if !s.known.Better(t.Number, m) {
				return nil
			}
			measured = true
			s.known.Put(t.Number, m)
			return s.write(s.known)
		})
	if !measured {
		return cli.WithCode(cli.ExitFailure, err)
	}
	return cli.WithCode(cli.ExitFailure, errors.Join(err, a.tellPublished(s.output, s.known, &s.publishedFiles)))
}

// complete checks what cobra does not, and that results and page can be written, before the work.
func (s *publishedSettings) complete() (err error) {
	if s.tables, err = published.Find(s.numbers); err != nil {
		return err
	}
	if s.options.Scale, err = published.ParseScale(s.scale); err != nil {
		return err
	}
	if s.options.Rounds < 1 {
		return errors.New("--rounds has to be at least 1")
	}
	for _, p := range s.peers {
		if err := s.peer(p); err != nil {
			return err
		}
	}
	if err := errors.Join(canWrite("--results", s.results), canWrite("--page", s.page)); err != nil {
		return err
	}
	if s.known, err = published.Read(s.results); err != nil {
		return mongo.WithHint(err, "name another file with --results, or move this one away")
	}
	s.options.Millrace, s.options.Router, err = programs(s.options.Millrace)
	return err
}

func (s *publishedSettings) peer(given string) error {
	name, program, _ := strings.Cut(given, "=")
	switch name {
	case javaPeer:
		if _, err := os.Stat(program); err != nil {
			return mongo.WithHint(fmt.Errorf("peer %s: there is nothing at %q", name, program),
				"give its path: --peer ycsb=/path/to/ycsb, a directory, a jar or a script")
		}
		path, err := filepath.Abs(program) // it may be run elsewhere
		s.options.Java = path
		return err
	case published.PeerMongoShake:
		p, err := benchmark.ParsePeer(given)
		if err == nil {
			s.options.Peers = append(s.options.Peers, p)
		}
		return err
	}
	return fmt.Errorf("no published table has the peer %q; there are %s and %s", name, published.PeerMongoShake, javaPeer)
}

// commandLine is the command line for the page, without directories.
func (s *publishedSettings) commandLine() []string {
	args := []string{"--table " + commas(s.numbers), "--scale " + s.scale, fmt.Sprintf("--rounds %d", s.options.Rounds)}
	for _, p := range s.peers {
		name, program, _ := strings.Cut(p, "=")
		args = append(args, "--peer "+name+"="+filepath.Base(program))
	}
	return append(args, "--mongod "+s.options.Servers.Version)
}

func (p *publishedFiles) write(r *published.Results) error {
	if err := writeFile(p.results, r.Write); err != nil {
		return err
	}
	return p.render(r)
}

func (p *publishedFiles) render(r *published.Results) error {
	var charts []published.File
	stem := strings.TrimSuffix(filepath.Base(p.page), filepath.Ext(p.page))
	err := writeFile(p.page, func(w io.Writer) (err error) {
		charts, err = published.Page(w, r, stem)
		return err
	})
	if err != nil {
		return err
	}
	for _, c := range charts {
		path := filepath.Join(filepath.Dir(p.page), c.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make directory of charts: %w", err)
		}
		err := writeFile(path, func(w io.Writer) error {
			_, err := io.WriteString(w, c.Text)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tellPublished prints the summary, or all results.
func (a *app) tellPublished(form string, r *published.Results, p *publishedFiles) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"table", "what is compared", "published", "here", "the run before"})
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 2, WidthMax: 60, WidthMaxEnforcer: text.WrapSoft}})
	for _, line := range published.Summary(r) {
		t.AppendRow(table.Row{line.Table, line.Text, line.Published, line.Here, line.Before})
	}
	return a.Tell(form, r, t.Render()+"\npage: "+p.page+", results: "+p.results+"\n")
}

func (a *app) publishedRenderCommand() *cobra.Command {
	var p publishedFiles
	var output string
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Write the page and its charts again from the results, without measuring",
		RunE: func(*cobra.Command, []string) error {
			r, err := readPublished(p.results)
			if err == nil {
				err = canWrite("--page", p.page)
			}
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			if err := p.render(r); err != nil {
				return err
			}
			return a.tellPublished(output, r, &p)
		},
	}
	p.flags(cmd.Flags())
	cli.BindOutput(cmd, &output, "text", "json")
	return cmd
}

// readPublished reads results that have to be there.
func readPublished(path string) (*published.Results, error) {
	r, err := published.Read(path)
	if err == nil && len(r.Tables) == 0 {
		err = mongo.WithHint(fmt.Errorf("there are no results in %s", path), "measure with millrace-bench bench published")
	}
	return r, err
}

func (a *app) publishedCompareCommand() *cobra.Command {
	var results, output string
	cmd := &cobra.Command{
		Use:   "compare OLD.json",
		Short: "Say what differs between two runs, and how much of that chance explains",
		Long: `Compares earlier results with those of --results: the ratios, which compare, and
the figures as measured, which move with the machine. Two are apart when all
rounds of one run are above all of the other. Of two times three rounds of the
same thing, one in ten is apart by chance. Tables of another machine or scale are
not compared, figures of one round not judged.

The exit code is 0 when no more is apart than chance explains (in 19 of 20
repetitions), 1 when more is, 2 without an answer.`,
		Args: cli.OneArg("file of results"), ValidArgsFunction: cli.Files,
		RunE: func(_ *cobra.Command, args []string) error {
			was, err := readPublished(args[0])
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			is, err := readPublished(results)
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			c := published.Compare(was, is)
			if err := a.Tell(output, c, c.Text()); err != nil {
				return err
			}
			switch {
			case c.Ratios.Differs():
				err = cli.WithCode(cli.ExitFailure, fmt.Errorf("%d of %d ratios are apart, more than chance explains",
					len(c.Ratios.Apart), c.Ratios.Compared))
			case c.Figures.Differs():
				err = cli.WithCode(cli.ExitFailure, fmt.Errorf("%d of %d figures are apart, more than chance explains, and their "+
					"ratios are not: the machine was faster or slower", len(c.Figures.Apart), c.Figures.Compared))
			case c.Figures.Compared == 0:
				err = cli.WithCode(cli.ExitTrouble, errors.New("the runs have no figures that can be compared"))
			}
			return err
		},
	}
	cmd.Flags().StringVar(&results, "results", publishedResults(), "`file` of the later results")
	cli.BindOutput(cmd, &output, "text", "json")
	return cmd
}
