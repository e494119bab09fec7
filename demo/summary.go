package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/millrace/millrace/internal/job"
)

// summary prints what happened; the error says that the target differs.
func (d *demo) summary() error {
	m, w := d.move, d.writes
	s := m.last
	copying := s.PhaseSeconds[job.PhaseCopying]
	var compared, bytes int64
	for _, c := range d.report.Collections {
		compared, bytes = compared+c.SourceDocs, bytes+c.SourceBytes
	}
	different := d.report.Count + int64(len(d.report.Schema)) + int64(len(s.Differences)) + int64(len(d.hashed.different))

	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendRows([]table.Row{
		{"loaded before", fmt.Sprintf("%s documents, mongod %s, source of %d members", grouped(d.loaded), mongodVersion, d.members)},
		{"written meanwhile", fmt.Sprintf("%s inserts, %s updates, %s deletes, %s expired", grouped(w.inserts.Load()), grouped(w.updates.Load()), grouped(w.deletes.Load()), grouped(d.expired))},
		{"  of these", fmt.Sprintf("%s in transactions, %s trades of a unique key; %d schema changes", grouped(3*w.transactions.Load()), grouped(w.trades.Load()), w.schema.Load())},
		{"  right before the end", fmt.Sprintf("a burst of %s operations in %s", grouped(d.burst.operations), seconds(d.burst.took))},
		{"copied", fmt.Sprintf("%s documents (time series as buckets), %s, %s documents/s", grouped(s.Copy.Docs), megabytes(s.Copy.Bytes), grouped(int64(float64(s.Copy.Docs)/max(copying, 0.1))))},
		{"changes applied", fmt.Sprintf("%s operations, %d schema changes", grouped(s.Follow.Operations), s.Follow.SchemaChanges)},
		{"phases", m.phaseTimes()},
		{"behind, at most", fmt.Sprintf("%.1f s while following", m.maxLag)},
		{"finalize took", seconds(m.finalizeTook)},
		{"millrace itself", fmt.Sprintf("%.1f s of CPU, %s of memory at most", s.Process.CPUSeconds, megabytes(s.Process.Peak))},
		{"compared", fmt.Sprintf("%s documents, %s, byte for byte, in %s", grouped(compared), megabytes(bytes), seconds(d.report.End.Sub(d.report.Start)))},
		{"servers' own dbHash", fmt.Sprintf("%d of %d collections equal", d.hashed.collections-len(d.hashed.different), d.hashed.collections)},
		{"differences", different},
		{"all of it took", seconds(time.Since(d.began))},
	})
	fmt.Printf("\n%s\n", t.Render())
	fmt.Print(`
Try it by hand:
  src=$(bin/millrace lab up --name a --topology rs:3 --output uri)
  dst=$(bin/millrace lab up --name b --output uri)
  bin/millrace sync --source "$src" --target "$dst"      # write to $src meanwhile
  bin/millrace status --watch                            # in another shell
  bin/millrace finalize
  bin/millrace verify --source "$src" --target "$dst"
  bin/millrace lab down --name a; bin/millrace lab down --name b
`)
	if different > 0 {
		return fmt.Errorf("the target differs from the source: %s", d.differences())
	}
	return nil
}

// differences names the first of each sort.
func (d *demo) differences() string {
	var out []string
	for _, x := range d.report.Differences[:min(5, len(d.report.Differences))] {
		out = append(out, fmt.Sprintf("%s document %s of %s %s", x.Kind, x.ID, x.NS, x.Detail))
	}
	for _, x := range d.report.Schema {
		out = append(out, fmt.Sprintf("%s: %s: %s", x.NS, x.What, x.Detail))
	}
	out = append(out, d.move.last.Differences...)
	for _, ns := range d.hashed.different {
		out = append(out, "dbHash of "+ns)
	}
	return strings.Join(out, "; ")
}
