package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// compare lets millrace verify the target, and asks the servers for a second opinion.
func (d *demo) compare(ctx context.Context) error {
	d.out.Print("\n$ millrace verify --source … --target …")
	err := d.ask(ctx, &d.report, "verify", "--recheck-for", "0s")
	if err != nil && (d.report.Same || d.report.End.IsZero()) { // else it has found differences
		return err
	}
	if sharded.Is(d.source.topology) || sharded.Is(d.target.topology) { // routers have no such command
		return nil
	}
	all := [2]map[string]string{}
	for i, c := range []*mongo.Client{d.source.client, d.target.client} {
		if all[i], err = hashes(ctx, c); err != nil {
			return err
		}
	}
	d.hashed = len(all[0])
	names := maps.Clone(all[0])
	maps.Copy(names, all[1])
	for _, ns := range slices.Sorted(maps.Keys(names)) {
		if all[0][ns] != all[1][ns] {
			d.unequal = append(d.unequal, ns)
		}
	}
	return nil
}

// hashes returns the hashes of collections by the command dbHash, from the documents in the order of their _id.
func hashes(ctx context.Context, client *mongo.Client) (map[string]string, error) {
	all := map[string]string{}
	for _, db := range []string{"files", "logs", "shop"} {
		var reply struct{ Collections map[string]string }
		if err := client.Database(db).RunCommand(ctx, bson.M{"dbHash": 1}).Decode(&reply); err != nil {
			return nil, fmt.Errorf("dbHash of %s: %w", db, err)
		}
		for name, hash := range reply.Collections {
			all[db+"."+name] = hash
		}
	}
	return all, nil
}

// summary prints what happened; the error says that the target differs.
func (d *demo) summary(context.Context) error {
	w, s := d.writes, d.last
	var compared, bytes int64
	for _, c := range d.report.Collections {
		compared, bytes = compared+c.SourceDocs, bytes+c.SourceBytes
	}
	different := d.report.Count + int64(len(d.report.Schema)+len(s.Differences)+len(d.unequal))
	var phases []string
	for _, p := range []job.Phase{job.PhaseCatalog, job.PhaseCopying, job.PhaseIndexing,
		job.PhaseOverlap, job.PhaseFollowing, job.PhaseFinalizing} {
		if took, ok := s.PhaseSeconds[p]; ok {
			phases = append(phases, fmt.Sprintf("%s %.1f s", p, took))
		}
	}
	rate := int64(float64(s.Copy.Docs) / max(s.PhaseSeconds[job.PhaseCopying], 0.1))

	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	row := func(what, format string, args ...any) { t.AppendRow(table.Row{what, fmt.Sprintf(format, args...)}) }
	row("loaded before", "%s documents, mongod %s, %s to %s", grouped(d.loaded), mongodVersion, d.source.topology,
		d.target.topology)
	row("written meanwhile", "%s inserts, %s updates, %s deletes, %s expired", grouped(w.inserts.Load()),
		grouped(w.updates.Load()), grouped(w.deletes.Load()), grouped(d.expired))
	kind, how := "a unique key", syncByHand
	if w.sharded != nil {
		kind = "a key"
	}
	if d.service {
		how = serviceByHand
	}
	row("  of these", "%s in transactions, %s trades of %s; %d schema changes", grouped(3*w.transactions.Load()),
		grouped(w.trades.Load()), kind, w.schema.Load())
	if n := w.chunks.Load(); n > 0 {
		row("  meanwhile, too", "%d chunks moved by force from shard to shard, the balancer on", n)
	}
	row("  right before the end", "a burst of %s operations in %s", grouped(burstInserts+burstUpdates+burstDeletes),
		seconds(d.burstTook))
	if d.files != nil {
		row("copied", "%s of files, of all members together", size(s.Copy.Bytes))
	} else {
		row("copied", "%s documents (time series as buckets), %s, %s documents/s", grouped(s.Copy.Docs), size(s.Copy.Bytes),
			grouped(rate))
	}
	row("changes applied", "%s operations, %d schema changes", grouped(s.Follow.Operations), s.Follow.SchemaChanges)
	row("phases", "%s", strings.Join(phases, ", "))
	if f := d.files; f != nil {
		row("by files", "%s until it followed, while others wrote", seconds(f.took))
		row("by documents", "%s to as many members, while nobody wrote", seconds(f.logical))
	}
	row("behind, at most", "%.1f s while following", d.maxLag)
	row("finalize took", "%s", seconds(d.finalizeTook))
	if d.service {
		row("run by", "%s, one of %d workers", d.worker, len(d.processes))
	} else { // a worker may run other jobs, too
		row("millrace itself", "%.1f s of CPU, %s of memory at most", s.Process.CPUSeconds, size(s.Process.Peak))
	}
	row("compared", "%s documents, %s, byte for byte, in %s", grouped(compared), size(bytes),
		seconds(d.report.End.Sub(d.report.Start)))
	if d.hashed > 0 {
		row("servers' own dbHash", "%d of %d collections equal", d.hashed-len(d.unequal), d.hashed)
	}
	row("differences", "%d", different)
	row("all of it took", "%s", since(d.began))
	fmt.Printf("\n%s\n", t.Render())
	if d.files == nil {
		fmt.Printf(byHand, d.source.topology, d.target.topology, how)
	}
	if different == 0 {
		return nil
	}
	found, err := json.Marshal(map[string]any{
		"documents": d.report.Differences[:min(5, len(d.report.Differences))], "schema": d.report.Schema,
		"seen by finalize": s.Differences, "dbHash": d.unequal})
	return errors.Join(fmt.Errorf("the target differs from the source: %s", found), err)
}

func grouped(n int64) string { return humanize.Comma(n) }

func size(n int64) string { return humanize.Bytes(uint64(n)) }

// byHand are the commands that do the same, syncByHand and serviceByHand those in their middle.
const (
	byHand = `
Try it by hand:
  src=$(bin/millrace-bench lab up --name a --topology %s --output uri)
  dst=$(bin/millrace-bench lab up --name b --topology %s --output uri)
%s
  bin/millrace verify --source "$src" --target "$dst"
  bin/millrace-bench lab down --name a; bin/millrace-bench lab down --name b
`
	syncByHand = `  bin/millrace sync --source "$src" --target "$dst"      # write to $src meanwhile
  bin/millrace status --watch                            # in another shell
  bin/millrace finalize`
	serviceByHand = `  MILLRACE_SECRET_SRC=$src MILLRACE_SECRET_DST=$dst bin/millrace serve    # it prints the console's address
  export MILLRACE_SERVER=127.0.0.1:8470 MILLRACE_TOKEN=$(cat ~/.local/state/millrace/service/token)
  printf 'source: env:SRC\ntarget: env:DST\n' > orders.yaml
  bin/millrace jobs create --name orders --file orders.yaml              # in another shell; write to $src meanwhile
  bin/millrace finalize --job orders --when-caught-up --wait`
)
