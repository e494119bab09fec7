package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// debugCommand groups looks at what a job sees and stores.
func (a *app) debugCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Look at what a job sees and what it has stored",
		Long: `Shows the events that a job reads, the slices of its copy, and the document by
which it goes on. Nothing is written, and no running job takes notice.`,
		Example: `  millrace debug oplog --from 2026-01-02T15:04:05Z --include shop
  millrace debug slices --job orders
  millrace debug job --job orders --output json`,
	}
	cmd.AddCommand(a.debugOplogCommand(), a.debugSlicesCommand(), a.debugJobCommand())
	return cmd
}

// debugConnect connects to a side, whose connection string may come from the
// environment.
func (a *app) debugConnect(ctx context.Context, flag, uri string) (*mongo.Cluster, error) {
	uri, err := a.address(flag, uri, fmt.Errorf("no %s is given", flag))
	if err != nil {
		return nil, err
	}
	c, err := mongo.Connect(ctx, uri, mongo.Options{AppName: "millrace-debug"})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return c, nil
}

// stored is a look at what a job has stored: its flags, and then the job.
type stored struct {
	source, target, job, output string

	state.Store
}

// storedCommand makes a command that finds a job first. The store only reads: it
// belongs to no run.
func (a *app) storedCommand(cmd *cobra.Command, s *stored, do func(context.Context) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.debugConnect(cmd.Context(), "target", s.target)
		if err != nil {
			return err
		}
		defer c.Close()
		if s.job == "" {
			if s.job, err = onlyJob(cmd.Context(), c); err != nil {
				return err
			}
		}
		s.Store = state.Open(c, state.Options{Job: s.job})
		return do(cmd.Context())
	}
	cmd.Flags().StringVar(&s.target, "target", "", "connection string `URI` of the job's target; with a password, set MILLRACE_TARGET instead")
	cmd.Flags().StringVar(&s.job, "job", "", "`id` of the job; may be left out where the target has one job only")
	bindOutput(cmd, &s.output, "`form` of the result: text or json", "text", "json")
	return cmd
}

func onlyJob(ctx context.Context, c *mongo.Cluster) (string, error) {
	var ids []string
	err := c.Client.Database(mongo.StateDB).Collection("jobs").Distinct(ctx, "_id", bson.D{}).Decode(&ids)
	switch {
	case err != nil:
		return "", fmt.Errorf("list the jobs of %s: %w", c.Address(), err)
	case len(ids) == 0:
		return "", mongo.WithHint(fmt.Errorf("%s is no target of any job", c.Address()), "a job is stored on its target, in the database "+mongo.StateDB)
	case len(ids) > 1:
		return "", withCode(exitUsage, mongo.WithHint(fmt.Errorf("there are several jobs: %s", plain(strings.Join(ids, ", "))), "choose one with --job"))
	}
	return ids[0], nil
}

func (a *app) debugSlicesCommand() *cobra.Command {
	var s stored
	return a.storedCommand(&cobra.Command{
		Use:   "slices --target URI",
		Short: "Show the slices of a job's copy and how far they are",
	}, &s, func(ctx context.Context) error {
		list, err := s.LoadSlices(ctx)
		if err != nil {
			return err
		}
		if s.output == "json" {
			return a.tell(s.output, relaxedAll(list), "")
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
			count(float64(s.Docs)), size(float64(s.Bytes)), sliceState(&s)})
	}
	t.SortBy([]table.SortBy{{Number: 1}, {Number: 2, Mode: table.AscAlphaNumeric}})
	_, err := fmt.Fprintln(a.stdout, t.Render())
	return err
}

func bound(b bson.Raw) string {
	if len(b) == 0 {
		return ""
	}
	return cut(plain(relaxed(b)), 40)
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

func (a *app) debugJobCommand() *cobra.Command {
	var s stored
	cmd := a.storedCommand(&cobra.Command{
		Use:   "job --target URI",
		Short: "Show the document by which a job goes on",
		Long: `Shows the document of a job in its target's database, with its positions and how
far they are behind: behind the source where that is given, else behind the
clock.`,
	}, &s, func(ctx context.Context) error { return a.debugJob(ctx, &s) })
	cmd.Flags().StringVar(&s.source, "source", "", "connection string `URI` of the job's source, for lags; with a password, set MILLRACE_SOURCE instead")
	return cmd
}

func (a *app) debugJob(ctx context.Context, s *stored) error {
	j, found, err := s.Reload(ctx)
	if err == nil && !found {
		err = mongo.WithHint(fmt.Errorf("there is no job %s", s.job), "leave --job out to see which there are")
	}
	if err != nil {
		return err
	}
	if s.output == "json" {
		raw, err := bson.Marshal(j)
		if err != nil {
			return fmt.Errorf("write job: %w", err)
		}
		return a.tell(s.output, json.RawMessage(relaxed(bson.Raw(raw))), "")
	}
	now, behind := mongo.OpTime{TS: bson.Timestamp{T: uint32(time.Now().Unix())}}, "the clock"
	if a.uri("source", s.source) != "" {
		c, err := a.debugConnect(ctx, "source", s.source)
		if err != nil {
			return err
		}
		defer c.Close()
		p, err := c.Positions(ctx)
		if err != nil {
			return err
		}
		now, behind = p.Majority, "the source"
	}
	_, err = fmt.Fprintln(a.stdout, jobTable(&j, now, behind).Render())
	return err
}

// jobTable shows a job; lags are measured from now.
func jobTable(j *state.Job, now mongo.OpTime, behind string) table.Writer {
	t := newTable(plain(j.ID), j.Phase)
	row := func(name string, value any) { t.AppendRow(table.Row{name, value}) }
	at := func(name string, p mongo.OpTime) {
		if p.IsZero() {
			row(name, "none")
			return
		}
		lag := time.Duration(int64(now.TS.T)-int64(p.TS.T)) * time.Second
		text := fmt.Sprintf("%s (%s)", p, p.Time().Format(time.RFC3339))
		switch {
		case lag > 0:
			text += ", " + lag.String() + " behind " + behind
		case lag < 0:
			text += ", " + (-lag).String() + " ahead of " + behind
		}
		row(name, text)
	}
	row("source", j.Source)
	row("target", j.Target)
	row("rules", j.Rules)
	row("mode", j.Mode)
	row("created", j.CreatedAt.Format(time.RFC3339))
	row("saved", j.UpdatedAt.Format(time.RFC3339))
	at("start position", j.Start)
	at("consistent position", j.Consistent)
	at("applied", j.Applied)
	if from, err := oplog.ReadFrom(stream.Position{At: j.Applied, Mark: j.Mark}); err != nil {
		row("reads on from", plain(err.Error()))
	} else {
		at("reads on from", from)
	}
	at("reach", j.Reach)
	at("schema change under way", j.Intent)
	row("attempt", j.Fence)
	row("saves", j.Beat)
	if j.Owner != (state.Owner{}) {
		row("owner", plain(j.Owner.String()+", run "+j.Owner.Run))
	}
	if j.Paused {
		row("paused", "yes")
	}
	for _, d := range j.Refused {
		row("refused", plain(fmt.Sprintf("%s _id %s at %s", d.NS, d.ID, d.At)))
	}
	return t
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
