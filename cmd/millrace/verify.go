package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shown"
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
still on that document. Of sharded clusters each shard is read directly where it
can be reached, and only what it owns counts. --structure compares no documents.

Exit codes, as diff has them: 0 when nothing differs, 1 when something does, 2
when there is no answer, such as when a connection breaks midway.`,
		Example: `  millrace verify --source mongodb://a:27017 --target mongodb://b:27017
  millrace verify --config sync.yaml --report differences.json
  millrace verify --method ranges --config sync.yaml
  millrace verify --structure --config sync.yaml`,
		Annotations: map[string]string{cli.FailsWith: "trouble"},
	}
	return a.configured(cmd, config.CommandVerify, &s, func(ctx context.Context, run *session) error { return run.verifyClusters(ctx, &s) })
}

func (r *session) verifyClusters(ctx context.Context, s *config.Verify) error {
	r.spareCollector()
	r.log.Info("connecting", "source", mongo.Redact(s.Source), "target", mongo.Redact(s.Target))
	report, err := r.compare(ctx, s.ProgressInterval, s.Spec)
	if err != nil {
		return err
	}
	if err := r.Tell(s.Output, report, verifiedText(report)); err != nil {
		return err
	}
	err = verifiedError(report)
	if err != nil && s.Report == "" && s.Output != "json" && (report.Count > maxListed || len(report.Schema) > maxListed) {
		return mongo.WithHint(err, "--report file.json lists up to --max-differences documents")
	}
	return err
}

// compare compares two clusters and shows the progress.
func (r *session) compare(ctx context.Context, interval time.Duration, spec verify.Spec) (report *verify.Report, err error) {
	begun := make(chan func() verify.Stats, 1)
	spec.Log, spec.Observe = r.log, func(stats func() verify.Stats) { begun <- stats }
	err = during(ctx, func() (err error) { report, err = r.verify(ctx, spec); return err }, func(ctx context.Context) {
		select {
		case stats := <-begun:
			r.watchVerify(ctx, interval, stats)
		case <-ctx.Done():
		}
	})
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w before everything was compared", context.Cause(ctx))
	}
	return report, err
}

// verifiedError is the error of clusters that differ.
func verifiedError(r *verify.Report) error {
	if r.Same {
		return nil
	}
	if r.StructureOnly {
		return cli.WithCode(cli.ExitFailure, fmt.Errorf("the clusters differ: %s of collections, indexes or options", plural(len(r.Schema), "difference")))
	}
	return cli.WithCode(cli.ExitFailure, fmt.Errorf("the clusters differ: %s, %s of collections, indexes or options",
		plural(int(r.Count), "document"), plural(len(r.Schema), "difference")))
}

func verifiedText(r *verify.Report) string {
	var b strings.Builder
	if r.StructureOnly {
		b.WriteString("collections, options, indexes and views were compared, no documents\n")
	} else {
		fmt.Fprintln(&b, verifiedTable(r).Render())
	}
	var schema []string
	for _, d := range r.Schema {
		schema = append(schema, d.NS+": "+d.What+": "+d.Detail)
	}
	writeDifferences(&b, schema)
	for _, d := range r.Differences[:min(len(r.Differences), maxListed)] {
		fmt.Fprintf(&b, "  %s: %s _id %s%s\n", d.Kind, cli.Plain(d.NS), cli.Plain(cut(d.ID.String(), 120)), detail(d.Detail))
	}
	if n := r.Count - int64(min(len(r.Differences), maxListed)); n > 0 {
		fmt.Fprintf(&b, "  and %d documents more\n", n)
	}
	for _, c := range r.Collections {
		if c.Skipped != nil {
			fmt.Fprintf(&b, "expected: %s: %s\n", cli.Plain(c.NS), c.Skipped)
		}
		if c.Unmapped > 0 {
			fmt.Fprintf(&b, "expected: %s: not on the target: %s, the rules cannot map them\n", cli.Plain(c.NS), humanize.Comma(c.Unmapped))
		}
	}
	for _, line := range listed(r.Expected, func(d verify.SchemaDifference) string { return "expected: " + d.NS + ": " + d.What + ": " + d.Detail }) {
		fmt.Fprintln(&b, cli.Plain(line))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", cli.Plain(n))
	}
	if r.Same {
		b.WriteString(sameText(r))
	}
	return b.String()
}

// sameText is the verdict on clusters that do not differ but for what has to.
func sameText(r *verify.Report) string {
	skipped := func(c verify.Collection) bool { return c.Skipped != nil }
	deferred := func(d verify.SchemaDifference) bool { return d.Deferred }
	unmapped := func(c verify.Collection) bool { return c.Unmapped > 0 }
	switch {
	case slices.ContainsFunc(r.Collections, unmapped):
		return "nothing differs but what the rules leave out\n"
	case slices.ContainsFunc(r.Expected, deferred):
		return "nothing differs but what is expected; what is deferred comes at the latest when its job is finalized\n"
	case len(r.Expected) > 0 || slices.ContainsFunc(r.Collections, skipped):
		return "nothing differs but what the skipped operations leave\n"
	}
	return "nothing differs\n"
}

func detail(s string) string {
	if s == "" {
		return ""
	}
	return ": " + cli.Plain(cut(s, 300))
}

func verifiedTable(r *verify.Report) table.Writer {
	t := newTable("collection", "source documents", "target documents", "size", "rechecked", "differences")
	var source, target, bytes, rechecked int64
	for _, c := range r.Collections {
		name := c.NS
		if c.TargetNS != c.NS && c.TargetNS != "" {
			name += " → " + c.TargetNS
		}
		t.AppendRow(table.Row{name, c.SourceDocs, c.TargetDocs, shown.Size(float64(c.SourceBytes)), c.Rechecked, c.Differences})
		source, target, bytes, rechecked = source+c.SourceDocs, target+c.TargetDocs, bytes+c.SourceBytes, rechecked+c.Rechecked
	}
	t.AppendFooter(table.Row{plural(len(r.Collections), "collection") + " in " + r.End.Sub(r.Start).Round(time.Millisecond).String(),
		source, target, shown.Size(float64(bytes)), rechecked, r.Count})
	alignRight(t, 2, 3, 4, 5, 6)
	return t
}

// watchVerify shows the progress until ctx ends.
func (r *session) watchVerify(ctx context.Context, interval time.Duration, stats func() verify.Stats) {
	began := time.Now()
	r.watch(ctx, interval, func() {
		st := stats()
		r.log.Info("progress", "docs", st.Docs, "docsTotal", st.EstimatedDocs,
			"bytes", bytesOf(st.Bytes), "collections", st.CollectionsDone, "collectionsTotal", st.Collections,
			"rechecking", st.Waiting, "differences", st.Differences)
	}, func(columns, _ int) []string { return verifyView(stats(), time.Since(began), columns) })
}

// verifyView draws the progress of a comparison as lines of at most columns
// columns.
func verifyView(st verify.Stats, elapsed time.Duration, columns int) []string {
	v := viewer{columns: max(columns, 10)}
	p := shown.Share(st.Docs, st.EstimatedDocs, false)
	per := max(elapsed.Seconds(), 0.001)
	v.add("comparing "+fmt.Sprintf("%d of %d collections", st.CollectionsDone, st.Collections), shown.Clock(elapsed))
	v.add(label("documents")+v.bar(p)+"  "+shown.Count(float64(st.Docs)),
		shown.Count(float64(st.Docs)/per)+"/s", shown.Size(float64(st.Bytes)/per)+"/s")
	v.add(label("differ")+shown.Count(float64(st.Differences)), fmt.Sprintf("rechecking %d", st.Waiting), fmt.Sprintf("settled %d", st.Settled))
	return v.lines
}
