package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/outfile"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// deadlettersCommand groups what concerns documents that a target refused.
func (a *app) deadlettersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deadletters",
		Short: "Show, export and try again the documents that a target refused",
		Long: `Shows the dead letters on a target: documents that it refused, and those of
somebody else that were removed from it to make room; and those that rules for
fields cannot map. See --on-conflict of millrace sync. With --server a worker of a
service of many jobs reads and tries them.`,
		Example: `  millrace deadletters list --job orders --state open
  millrace deadletters show --target mongodb://b:27017 orders/5f2b…/1700000000:1
  millrace deadletters export --job orders --file letters.jsonl
  millrace deadletters retry --job orders
  millrace deadletters list --server 127.0.0.1:8470 --job orders`,
	}
	cmd.AddCommand(a.lettersListCommand(), a.lettersShowCommand(), a.lettersRetryCommand(), a.lettersExportCommand())
	return cmd
}

// letterLook is a look at some letters.
type letterLook struct {
	stored
	ns, state string
}

// lettersCommand makes a command that looks at some letters.
func (a *app) lettersCommand(cmd *cobra.Command, l *letterLook, do func(context.Context) error) *cobra.Command {
	a.targetCommand(cmd, &l.stored, do)
	a.bindJob(cmd, &l.stored, "only the letters of this job, by its `name`")
	cmd.Flags().StringVar(&l.ns, "ns", "", "only those of this collection of the target, or of this `database`")
	config.Choice(cmd.Flags(), &l.state, "state", "all", "only those in this `state`: open (the target lacks the document), undecided (it may yet come), settled (it came, or is gone), removed (somebody else's, taken off the target), unmapped (the rules for fields do not fit) or all",
		"open", "undecided", "settled", "removed", "unmapped", "all")
	return cmd
}

func (l *letterLook) filter() deadletter.Filter {
	f := deadletter.Filter{Job: l.job, NS: l.ns}
	if l.state != "all" {
		f.State = deadletter.State(l.state)
	}
	return f
}

func (a *app) lettersListCommand() *cobra.Command {
	var l letterLook
	return a.orService(a.lettersCommand(&cobra.Command{
		Use:   "list --target URI",
		Short: "List dead letters",
		Long:  `Lists dead letters without their documents; as JSON, one a line.`,
	}, &l, func(ctx context.Context) error { return a.listLetters(ctx, &l) }), &l.stored, func(ctx context.Context, r *remote) error { return a.listRemoteLetters(ctx, r, &l) })
}

// listLetters writes as it reads: there may be a hundred thousand.
func (a *app) listLetters(ctx context.Context, l *letterLook) error {
	a.Results.Stream = true
	out := bufio.NewWriter(a.Stdout)
	n := 0
	err := deadletter.Browse(ctx, l.cluster, l.filter(), false, func(raw bson.Raw) error {
		one, err := deadletter.ReadSummary(raw)
		if err != nil {
			return err
		}
		n++
		if l.output == "json" {
			return json.NewEncoder(out).Encode(one)
		}
		_, err = fmt.Fprintf(out, "%s  %s  %s  _id %s  %s\n", cli.Plain(one.ID), one.State, cli.Plain(one.NS), cli.Plain(one.Document), cut(cli.Plain(one.Reason), 100))
		return err
	})
	if err == nil && n == 0 && l.output != "json" {
		_, err = fmt.Fprintln(out, "there is no such letter")
	}
	return errors.Join(err, out.Flush())
}

func (a *app) lettersShowCommand() *cobra.Command {
	var s stored
	cmd := a.targetCommand(&cobra.Command{
		Use:   "show --target URI LETTER",
		Short: "Show a dead letter, its document, and what stands in its way",
		Long: `Shows a letter by its id, as list prints it: why the target refused the
document, the document itself, and what the target has now under its _id or
holds its key.`,
		Args: cobra.ExactArgs(1),
	}, &s, func(ctx context.Context) error { return a.showLetter(ctx, &s, s.args[0]) })
	a.bindJob(cmd, &s, "`name` of the job whose letter it is")
	return a.orService(cmd, &s, func(ctx context.Context, r *remote) error { return a.showRemoteLetter(ctx, r, cmd.Flags().Arg(0)) })
}

// shownLetter is what show prints.
type shownLetter struct {
	deadletter.Summary

	Doc    jsonText `json:"document"`
	Same   jsonText `json:"sameId"` // the target's document with the _id
	Holder jsonText `json:"other"`  // the one that holds the key
}

// jsonText is a document as extended JSON, null for none.
type jsonText bson.Raw

func (j jsonText) MarshalJSON() ([]byte, error) {
	if len(j) == 0 {
		return []byte("null"), nil
	}
	return bson.MarshalExtJSON(bson.Raw(j), true, false)
}

func (a *app) showLetter(ctx context.Context, s *stored, id string) error {
	var l *shownLetter
	err := deadletter.Browse(ctx, s.cluster, deadletter.Filter{ID: id}, true, func(raw bson.Raw) error {
		one, err := deadletter.ReadSummary(raw)
		doc, _ := raw.Lookup("document").DocumentOK()
		l = &shownLetter{Summary: one, Doc: jsonText(doc)}
		return err
	})
	switch {
	case err != nil:
		return err
	case l == nil:
		return cli.WithCode(cli.ExitUsage, mongo.WithHint(fmt.Errorf("there is no letter %s", cli.Plain(id)), "millrace deadletters list shows their ids"))
	}
	docID := l.DocID
	if docID.IsZero() {
		docID = bsonraw.RawValue(bsonraw.IDOf(l.Doc))
	}
	for id, into := range map[*bson.RawValue]*jsonText{&docID: &l.Same, &l.Other: &l.Holder} {
		if *into, err = onTarget(ctx, s.cluster, l.NS, *id); err != nil {
			return err
		}
	}
	return a.Tell(s.output, l, l.text())
}

// onTarget is the target's document with an _id, nil for none.
func onTarget(ctx context.Context, c *mongo.Cluster, ns string, id bson.RawValue) (jsonText, error) {
	if id.IsZero() || id.Type == 0 {
		return nil, nil
	}
	db, coll := mongo.SplitNS(ns)
	doc, err := c.Client.Database(db).Collection(coll).FindOne(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}).Raw()
	if errors.Is(err, driver.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ns, err)
	}
	return jsonText(doc), nil
}

func (l *shownLetter) text() string {
	t := newTable("letter", l.ID)
	t.AppendRows([]table.Row{{"job", l.Job}, {"collection", l.NS}, {"_id", l.Document}, {"state", l.State}, {"cause", l.Cause},
		{"reason", l.Reason}, {"position", l.Position}, {"refused first", l.Time.Format(time.RFC3339)}})
	f := facts{t}
	f.add("index", l.Index)
	f.add("settled by", l.Settled)
	var b strings.Builder
	fmt.Fprintln(&b, t.Render())
	for _, d := range []struct {
		what string
		doc  jsonText
	}{{"document", l.Doc}, {"on the target, with this _id", l.Same}, {"on the target, with the key", l.Holder}} {
		if len(d.doc) > 0 {
			fmt.Fprintf(&b, "%s:\n  %s\n", d.what, cli.Plain(relaxed(bson.Raw(d.doc))))
		}
	}
	return b.String()
}

func (a *app) lettersExportCommand() *cobra.Command {
	var l letterLook
	var file string
	cmd := a.lettersCommand(&cobra.Command{
		Use:   "export --target URI",
		Short: "Write dead letters with their documents as extended JSON, one a line",
		Long: `Writes letters with their documents as canonical extended JSON, one a line, to
standard output or to a file that its owner alone may read. Nothing is removed.`,
	}, &l, func(ctx context.Context) error { return a.exportLetters(ctx, &l, file) })
	cmd.Flags().StringVar(&file, "file", "", "write to this `file`, with mode 0600, instead of standard output")
	return a.orService(cmd, &l.stored, func(ctx context.Context, r *remote) error { return a.exportRemoteLetters(ctx, r, &l, file) })
}

func (a *app) exportLetters(ctx context.Context, l *letterLook, file string) error {
	n := 0
	write := func(w io.Writer) error {
		out := bufio.NewWriter(w)
		err := deadletter.Browse(ctx, l.cluster, l.filter(), true, func(raw bson.Raw) error {
			line, err := bson.MarshalExtJSON(raw, true, false)
			if err != nil {
				return fmt.Errorf("write a dead letter as JSON: %w", err)
			}
			n++
			_, err = out.Write(append(line, '\n'))
			return err
		})
		return errors.Join(err, out.Flush())
	}
	if file == "" {
		a.Results.Stream = true
		return write(a.Stdout)
	}
	if err := outfile.Write(file, write); err != nil {
		return fmt.Errorf("export to %s: %w", file, err)
	}
	return a.Tell(l.output, map[string]any{"file": file, "letters": n}, fmt.Sprintf("%s in %s\n", plural(n, "letter"), cli.Plain(file)))
}

func (a *app) lettersRetryCommand() *cobra.Command {
	var s stored
	var id string
	cmd := a.storedCommand(&cobra.Command{
		Use:   "retry --target URI",
		Short: "Try a job's open dead letters once more",
		Long: `Tries the open letters of a job once more, after what stood in their way was
removed. A running job is asked to do it; it has to be one of this machine and
user. A job that is stopped does it by itself when it starts. For a finalized job
the documents are written by this command: where the target has none of the same
_id, for nothing that it has is replaced. Exit code 1 when letters stay open.
What rules cannot map is not tried: it comes once the source has changed it.`,
	}, &s, func(ctx context.Context) error {
		if id != "" {
			return cli.WithCode(cli.ExitUsage, errors.New("--id is for jobs of a service"))
		}
		return a.retryLetters(ctx, &s)
	})
	cmd.Flags().StringVar(&id, "id", "", "try this `letter` alone; for jobs of a service")
	return a.orService(cmd, &s, func(ctx context.Context, r *remote) error { return a.retryRemoteLetters(ctx, r, id) })
}

// retried is what retry prints.
type retried struct {
	Job     string               `json:"job"`
	Tried   int64                `json:"tried"`
	Written int64                `json:"written"`
	Open    int64                `json:"open"`
	Refused []deadletter.Summary `json:"refused,omitempty"`
}

func (a *app) retryLetters(ctx context.Context, s *stored) error {
	info, err := findJob(ctx, s.cluster, s.job)
	if err != nil {
		return err
	}
	res := &retried{Job: s.job, Tried: info.Letters.Open + info.Letters.Undecided}
	switch info.State {
	case state.Running, state.Silent:
		err = a.askToRetry(ctx, s, info)
	case state.Stopped:
		return cli.WithCode(cli.ExitUsage, mongo.WithHint(job.ErrUnfinished, "start it: "+info.Resume))
	default:
		err = a.retryFinalized(ctx, s, res)
	}
	if err != nil {
		return err
	}
	counts, err := deadletter.Counts(ctx, s.cluster)
	if err != nil {
		return err
	}
	res.Open = counts[s.job].Open + counts[s.job].Undecided
	res.Written = max(0, res.Tried-res.Open)
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s tried, %d settled, %d open\n", cli.Plain(s.job), plural(int(res.Tried), "letter"), res.Written, res.Open)
	for _, line := range listed(res.Refused, func(r deadletter.Summary) string {
		return fmt.Sprintf("%s: %s, _id %s: %s", r.ID, r.NS, r.Document, r.Reason)
	}) {
		fmt.Fprintf(&b, "  %s\n", cli.Plain(line))
	}
	if err := a.Tell(s.output, res, b.String()); err != nil || res.Open == 0 {
		return err
	}
	return mongo.WithHint(fmt.Errorf("%s still open", plural(int(res.Open), "letter")), "millrace deadletters show LETTER says what stands in the way")
}

// askToRetry has the job's own process do it.
func (a *app) askToRetry(ctx context.Context, s *stored, j *jobInfo) error {
	c, err := a.client(ctx, &config.Control{Job: s.job}, false)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, mongo.WithHint(fmt.Errorf("job %s is %s, and cannot be reached from here: %w", cli.Plain(s.job), j.lifeText(), err),
			"run this on its machine as its user; or pause and resume it, which tries them too"))
	}
	defer c.Close()
	_, err = c.RetryLetters(ctx, s.job, "")
	return err
}

// retryFinalized writes the letters of a job that no process will run again.
func (a *app) retryFinalized(ctx context.Context, s *stored, res *retried) error {
	c, err := a.connectFor(ctx, "target", s.target, mongo.TargetApp)
	if err != nil {
		return err
	}
	defer c.Close()
	return job.Hold(ctx, c, s.job, a.notes(), func(ctx context.Context, held *job.Stopped) error {
		return held.RetryLetters(ctx, func(l deadletter.Letter, refused error) {
			if refused != nil {
				res.Refused = append(res.Refused, deadletter.Summary{ID: l.ID, Job: s.job, NS: l.NS, Document: bsonraw.IDText(l.DocID),
					State: string(l.State), Cause: string(l.Cause), Reason: refused.Error(), Position: l.At.String()})
			}
		})
	})
}

// notes is the log of a command without settings.
func (a *app) notes() *slog.Logger { return config.NewLog(a.Stderr, "info", "text") }
