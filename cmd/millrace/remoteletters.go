package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/outfile"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// orService has a command that looks at a target's letters ask a service for those of
// one of its jobs.
func (a *app) orService(cmd *cobra.Command, s *stored, ask func(context.Context, *remote) error) *cobra.Command {
	usage := cmd.Flags().Lookup("job").Usage
	defer func() { cmd.Flags().Lookup("job").Usage = usage + "; of a service it is needed" }()
	return a.orRemote(cmd, s, func(ctx context.Context, r *remote) error {
		if r.job == "" {
			return cli.WithCode(cli.ExitUsage, mongo.WithHint(errors.New("no job of the service is given"), "choose one with --job; millrace jobs list shows them"))
		}
		return ask(ctx, r)
	})
}

func (l *letterLook) remote() service.LetterFilter {
	f := service.LetterFilter{NS: l.ns, State: l.state}
	if f.State == "all" {
		f.State = ""
	}
	return f
}

func (a *app) listRemoteLetters(ctx context.Context, r *remote, l *letterLook) error {
	a.Results.Stream = true
	out := bufio.NewWriter(a.Stdout)
	n, f := 0, l.remote()
	for {
		page, err := r.Letters(ctx, r.job, f)
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		for i := range page.Letters {
			if err := a.remoteLetterLine(out, r, &page.Letters[i]); err != nil {
				return err
			}
			n++
		}
		if page.Next == "" || page.Next <= f.After {
			break
		}
		f.After = page.Next
	}
	if n == 0 && r.output != "json" {
		fmt.Fprintln(out, "there is no such letter")
	}
	return out.Flush()
}

func (a *app) remoteLetterLine(out io.Writer, r *remote, l *service.Letter) error {
	if r.output == "json" {
		return json.NewEncoder(out).Encode(l)
	}
	_, err := fmt.Fprintf(out, "%s  %s  %s  _id %s  %s\n", cli.Plain(l.ID), l.State, cli.Plain(l.NS), cli.Plain(l.Document), cut(cli.Plain(l.Reason), 100))
	return err
}

func (a *app) showRemoteLetter(ctx context.Context, r *remote, id string) error {
	l, err := r.Letter(ctx, r.job, id)
	if err != nil {
		return err
	}
	shown := shownLetter{Summary: deadletter.Summary{ID: l.ID, Job: r.job, NS: l.NS, Document: l.Document, State: l.State, Cause: l.Cause, Reason: l.Reason, Index: l.Index,
		Position: l.Position, Time: l.Time, Updated: l.Updated, Settled: l.Settled, Bytes: l.Bytes}}
	text := shown.text()
	for _, d := range []struct {
		what string
		doc  json.RawMessage
	}{{"document", l.Whole}, {"on the target, with this _id", l.SameID}, {"on the target, with the key", l.Other}} {
		if len(d.doc) > 0 && !bytes.Equal(d.doc, []byte("null")) {
			text += fmt.Sprintf("%s:\n  %s\n", d.what, cli.Plain(readable(d.doc)))
		}
	}
	return a.Tell(r.output, l, text)
}

// readable is canonical extended JSON as people read it.
func readable(raw json.RawMessage) string {
	var doc bson.Raw
	if err := bson.UnmarshalExtJSON(raw, true, &doc); err == nil {
		return relaxed(doc)
	}
	return string(raw)
}

func (a *app) exportRemoteLetters(ctx context.Context, r *remote, l *letterLook, file string) error {
	if file == "" {
		a.Results.Stream = true
		return r.ExportLetters(ctx, r.job, l.remote(), a.Stdout)
	}
	lines := &lineCounter{}
	err := outfile.Write(file, func(w io.Writer) error { return r.ExportLetters(ctx, r.job, l.remote(), io.MultiWriter(w, lines)) })
	if err != nil {
		return fmt.Errorf("export to %s: %w", file, err)
	}
	return a.Tell(r.output, map[string]any{"file": file, "letters": lines.n}, fmt.Sprintf("%s in %s\n", plural(lines.n, "letter"), cli.Plain(file)))
}

// lineCounter counts lines.
type lineCounter struct{ n int }

func (l *lineCounter) Write(p []byte) (int, error) {
	l.n += bytes.Count(p, []byte("\n"))
	return len(p), nil
}

func (a *app) retryRemoteLetters(ctx context.Context, r *remote, id string) error {
	res, err := r.RetryLetters(ctx, r.job, id)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s: %s tried, %d settled, %d open\n", cli.Plain(r.job), plural(int(res.Tried), "letter"), res.Written, res.Open)
	if !res.Done {
		text += "a worker still tries\n"
	}
	if err := a.Tell(r.output, res, text); err != nil || res.Open == 0 {
		return err
	}
	return mongo.WithHint(fmt.Errorf("%s still open", plural(int(res.Open), "letter")), "millrace deadletters show LETTER says what stands in the way")
}
