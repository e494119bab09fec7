package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/verify"
)

func (a *app) verifyCommand() *cobra.Command {
	var s config.Verify
	cmd := &cobra.Command{
		Use:   "verify --source URI --target URI",
		Short: "Prove that two clusters hold the same data",
		Long: `Compares every document that the rules keep, and collections, options, indexes
and views. Documents are read in the order of their storage and compared by sums
of 128-bit hashes with random seeds, and byte for byte where those differ;
--method ranges compares all of them byte for byte, which takes several times as
long. While writes go on, a difference is looked at again until both sides stand
still on that document.

Exit code 0 when nothing differs, 1 when something does.`,
		Example: `  millrace verify --source mongodb://a:27017 --target mongodb://b:27017
  millrace verify --config sync.yaml --report differences.json
  millrace verify --method ranges --config sync.yaml`,
		Args: cobra.NoArgs,
	}
	s.Bind(cmd.Flags())
	return a.configured(cmd, config.CommandVerify, func(o config.Origins, _ []string) error { return s.Validate(o) },
		func(ctx context.Context, o config.Origins, _ []string) error { return a.verifyClusters(ctx, &s, o) })
}

func (a *app) verifyClusters(ctx context.Context, s *config.Verify, origins config.Origins) error {
	a.spareCollector()
	screen := a.screen()
	log := newLog(a.logTo(screen), s.Common)
	warnSecrets(log, origins, map[string]string{"source": s.Source, "target": s.Target})
	log.Info("connecting", "source", mongo.Redact(s.Source), "target", mongo.Redact(s.Target))
	report, err := a.compare(ctx, screen, log, verify.Spec{
		Source: s.Source, Target: s.Target, Rules: s.Rules(),
		Options: verify.Options{
			Method: verify.Method(s.Method), IgnoreFieldOrder: s.IgnoreFieldOrder,
			Workers: s.Workers, MaxDifferences: s.MaxDifferences,
			Online: s.RecheckFor > 0, Recheck: verify.RecheckOptions{For: s.RecheckFor},
		},
	})
	if err != nil {
		return err
	}
	return a.tellVerified(s, report)
}

// compare compares two clusters and shows the progress.
func (a *app) compare(ctx context.Context, screen *screen, log *slog.Logger, spec verify.Spec) (*verify.Report, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	spec.Log = log
	spec.Observe = func(stats func() verify.Stats) {
		wg.Go(func() { watchVerify(watching, screen, log, time.Now(), stats) })
	}
	report, err := a.verify(ctx, spec)
	stop()
	wg.Wait()
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w before everything was compared", context.Cause(ctx))
	}
	return report, err
}

// tellVerified writes the report; differences are the command's error.
func (a *app) tellVerified(s *config.Verify, r *verify.Report) error {
	var failed []error
	if s.Report != "" {
		failed = append(failed, writeJSONFile(s.Report, r))
	}
	if s.Output == "json" {
		failed = append(failed, writeJSON(a.stdout, r))
	} else {
		failed = append(failed, writeVerified(a.stdout, r))
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	err := verifiedError(r)
	if err != nil && s.Report == "" && s.Output != "json" && (r.Count > maxListed || len(r.Schema) > maxListed) {
		return mongo.WithHint(err, "--report file.json lists up to --max-differences documents")
	}
	return err
}

// verifiedError is the error of clusters that differ.
func verifiedError(r *verify.Report) error {
	if r.Same {
		return nil
	}
	return fmt.Errorf("the clusters differ: %s, %s of collections, indexes or options",
		plural(int(r.Count), "document"), plural(len(r.Schema), "difference"))
}

func writeVerified(w io.Writer, r *verify.Report) error {
	var b strings.Builder
	b.WriteString(verifiedTable(r).Render())
	b.WriteByte('\n')
	for i, d := range r.Schema {
		if i == maxListed {
			fmt.Fprintf(&b, "  and %d more\n", len(r.Schema)-i)
			break
		}
		fmt.Fprintf(&b, "  differs: %s: %s: %s\n", plain(d.NS), plain(d.What), plain(d.Detail))
	}
	for i, d := range r.Differences {
		if i == maxListed {
			break
		}
		fmt.Fprintf(&b, "  %s: %s _id %s%s\n", d.Kind, plain(d.NS), plain(cut(d.ID.String(), 120)), detail(d.Detail))
	}
	if n := r.Count - int64(min(len(r.Differences), maxListed)); n > 0 {
		fmt.Fprintf(&b, "  and %d documents more\n", n)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", plain(n))
	}
	if r.Same {
		b.WriteString("nothing differs\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func detail(s string) string {
	if s == "" {
		return ""
	}
	return ": " + plain(cut(s, 300))
}

func verifiedTable(r *verify.Report) table.Writer {
	t := newTable("collection", "source documents", "target documents", "size", "rechecked", "differences")
	var source, target, bytes, rechecked int64
	for _, c := range r.Collections {
		name := plain(c.NS)
		if c.TargetNS != c.NS && c.TargetNS != "" {
			name += " → " + plain(c.TargetNS)
		}
		t.AppendRow(table.Row{name, c.SourceDocs, c.TargetDocs, size(float64(c.SourceBytes)), c.Rechecked, c.Differences})
		source, target, bytes, rechecked = source+c.SourceDocs, target+c.TargetDocs, bytes+c.SourceBytes, rechecked+c.Rechecked
	}
	t.AppendFooter(table.Row{plural(len(r.Collections), "collection") + " in " + r.End.Sub(r.Start).Round(time.Millisecond).String(),
		source, target, size(float64(bytes)), rechecked, r.Count})
	alignRight(t, 2, 3, 4, 5, 6)
	return t
}

// watchVerify shows the progress until ctx ends.
func watchVerify(ctx context.Context, s *screen, log *slog.Logger, began time.Time, stats func() verify.Stats) {
	watchLines(ctx, s, func() {
		st := stats()
		log.Info("progress", "docs", st.Docs, "docsTotal", st.EstimatedDocs,
			"size", size(float64(st.Bytes)), "collections", st.CollectionsDone, "collectionsTotal", st.Collections,
			"rechecking", st.Waiting, "differences", st.Differences)
	}, func(columns, _ int) []string { return verifyView(stats(), time.Since(began), columns) })
}

// verifyView draws the progress of a comparison as lines of at most columns
// columns.
func verifyView(st verify.Stats, elapsed time.Duration, columns int) []string {
	v := viewer{columns: max(columns, 10)}
	p := share(st.Docs, st.EstimatedDocs, false)
	per := max(elapsed.Seconds(), 0.001)
	v.add("comparing "+fmt.Sprintf("%d of %d collections", st.CollectionsDone, st.Collections), clock(elapsed))
	v.add(label("documents")+v.bar(p)+fmt.Sprintf("%3.0f%%  %s", p*100, count(float64(st.Docs))),
		count(float64(st.Docs)/per)+"/s", size(float64(st.Bytes)/per)+"/s")
	v.add(label("differ")+count(float64(st.Differences)), fmt.Sprintf("rechecking %d", st.Waiting), fmt.Sprintf("settled %d", st.Settled))
	return v.lines
}
