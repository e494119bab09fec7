package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/shown"
	"github.com/millrace/millrace/internal/state"
)

// debugCommand groups looks at what a job sees and stores.
func (a *app) debugCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Look at what a job sees, for developers",
		Long: `Shows the events that a job reads, and the slices of its copy. Nothing is
written, and no running job takes notice. What an operator wants to know of a job
is in millrace jobs.`,
		Example: `  millrace debug oplog --from 2026-01-02T15:04:05Z --include shop
  millrace debug slices --job orders`,
	}
	cmd.AddCommand(a.debugOplogCommand(), a.debugSlicesCommand())
	return cmd
}

func (a *app) debugSlicesCommand() *cobra.Command {
	var s stored
	return a.storedCommand(&cobra.Command{
		Use:   "slices --target URI",
		Short: "Show the slices of a job's copy and how far they are",
	}, &s, func(ctx context.Context) error {
		list, err := state.Open(s.cluster, state.Options{Job: s.job}).LoadSlices(ctx)
		if err != nil {
			return err
		}
		if s.output == "json" {
			return a.Tell(s.output, relaxedAll(list), "")
		}
		return a.writeSlices(list)
	})
}

func (a *app) writeSlices(list []bson.Raw) error {
	t := newTable("namespace", "slice", "walked by", "from", "to", "at", "documents", "size", "state")
	for _, raw := range list {
		var s scan.Slice
		if err := bson.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("read a slice: %w", err)
		}
		t.AppendRow(table.Row{s.NS, fmt.Sprintf("%d of %d", s.N+1, s.Of), s.Strategy, bound(s.Lower), bound(s.Upper), bound(s.Position),
			shown.Count(float64(s.Docs)), shown.Size(float64(s.Bytes)), sliceState(&s)})
	}
	t.SortBy([]table.SortBy{{Number: 1}, {Number: 2, Mode: table.AscAlphaNumeric}})
	_, err := fmt.Fprintln(a.Stdout, t.Render())
	return err
}

func bound(b bson.Raw) string {
	if len(b) == 0 {
		return ""
	}
	return cut(cli.Plain(relaxed(b)), 40)
}

func sliceState(s *scan.Slice) string {
	switch {
	case s.Dropped:
		return "dropped"
	case s.Done:
		return "done"
	case len(s.Position) > 0:
		return "under way"
	}
	return "to do"
}

// relaxedAll are documents as extended JSON.
func relaxedAll(docs []bson.Raw) []json.RawMessage {
	out := make([]json.RawMessage, len(docs))
	for i, d := range docs {
		out[i] = json.RawMessage(relaxed(d))
	}
	return out
}

// relaxed is a document as extended JSON for people.
func relaxed(d any) string {
	raw, err := bson.MarshalExtJSON(d, false, false)
	if err != nil {
		return "not readable: " + err.Error()
	}
	return string(raw)
}

// errEnough ends reading when the limit is reached.
var errEnough = errors.New("enough")
