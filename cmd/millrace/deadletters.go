package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/outfile"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// letters are dead letters where they are looked at: on a target, or in a service.
type letters interface {
	each(ctx context.Context, do func(*deadletter.Summary) error) error
	// one is the letter with an id, nil for none.
	one(ctx context.Context, id string) (*shownLetter, error)
	export(ctx context.Context, w io.Writer) error
	retry(ctx context.Context, id string) (*retried, error)
}

type letterLook struct {
	stored

	ns, state string
}

func (l *letterLook) command(cmd *cobra.Command, do func(context.Context, letters) error) *cobra.Command {
	l.stored.command(cmd, func(ctx context.Context) error { return do(ctx, &storedLetters{l}) })
	l.bindJob(cmd, "deadletters")
	l.orRemote(cmd, func(r *remote, ctx context.Context) error {
		if r.job == "" {
			return misuse(errors.New("no job of the service is given"), "choose one with --job; millrace jobs list shows them")
		}
		return do(ctx, &remoteLetters{r, l})
	})
	return cmd
}

func (l *letterLook) vars() config.Vars { return config.Vars{"ns": &l.ns, "state": &l.state} }

func (l *letterLook) inState() string {
	if l.state == "all" {
		return ""
	}
	return l.state
}

func lettersListCommand(a *app) *cobra.Command {
	l := letterLook{stored: stored{app: a}}
	return l.command(a.described("deadletters list", &cobra.Command{}, l.vars()), l.list)
}

// list writes as it reads: there may be a hundred thousand.
func (l *letterLook) list(ctx context.Context, from letters) error {
	l.Results.Stream = true
	out := bufio.NewWriter(l.Stdout)
	n := 0
	err := from.each(ctx, func(one *deadletter.Summary) error {
		n++
		if l.output == "json" {
			return json.NewEncoder(out).Encode(one)
		}
		_, err := fmt.Fprintf(out, "%s  %s  %s  _id %s  %s\n", cli.Plain(one.ID), one.State, cli.Plain(one.NS),
			cli.Plain(one.Document), cut(cli.Plain(one.Reason), 100))
		return err
	})
	if err == nil && n == 0 {
		err = l.none(ctx, from, out)
	}
	return errors.Join(err, out.Flush())
}

// none says that there are no dead letters, unless there is no such job either.
func (l *letterLook) none(ctx context.Context, from letters, out io.Writer) error {
	if _, ok := from.(*storedLetters); ok && l.job != "" {
		if _, err := findJob(ctx, l.cluster, l.job); err != nil {
			return err
		}
	}
	if l.output == "json" {
		return nil
	}
	_, err := fmt.Fprintln(out, "there are no such dead letters")
	return err
}

func lettersShowCommand(a *app) *cobra.Command {
	l := letterLook{stored: stored{app: a}}
	cmd := a.described("deadletters show", &cobra.Command{Args: cli.OneArg("dead letter")})
	return l.command(cmd, func(ctx context.Context, from letters) error {
		id := cmd.Flags().Arg(0)
		one, err := from.one(ctx, id)
		switch {
		case err != nil:
			return err
		case one == nil:
			return misuse(fmt.Errorf("there is no dead letter %s", cli.Plain(id)), "millrace deadletters list shows their ids")
		}
		return a.Tell(l.output, one, textOf("letter", one))
	})
}

// shownLetter is what show prints. Documents are canonical extended JSON, null for none.
type shownLetter struct {
	Job string `json:"job"`
	service.WholeLetter
}

func readable(raw json.RawMessage) string {
	var doc bson.Raw
	if err := bson.UnmarshalExtJSON(raw, true, &doc); err == nil {
		return relaxed(doc)
	}
	return string(raw)
}

func lettersExportCommand(a *app) *cobra.Command {
	l := letterLook{stored: stored{app: a}}
	var file string
	cmd := a.described("deadletters export", &cobra.Command{}, l.vars(), config.Vars{"file": &file})
	return l.command(cmd, func(ctx context.Context, from letters) error {
		if file == "" {
			a.Results.Stream = true
			return from.export(ctx, a.Stdout)
		}
		lines := &lineCounter{}
		if err := outfile.Write(file,
			func(w io.Writer) error { return from.export(ctx, io.MultiWriter(w, lines)) }); err != nil {
			return fmt.Errorf("export to %s: %w", file, err)
		}
		return a.Tell(l.output, map[string]any{"file": file, "letters": lines.n},
			fmt.Sprintf("%s in %s\n", plural(lines.n, "dead letter"), cli.Plain(file)))
	})
}

type lineCounter struct{ n int }

func (l *lineCounter) Write(p []byte) (int, error) {
	l.n += bytes.Count(p, []byte("\n"))
	return len(p), nil
}

func lettersRetryCommand(a *app) *cobra.Command {
	l := letterLook{stored: stored{app: a}}
	var id string
	cmd := a.described("deadletters retry", &cobra.Command{}, config.Vars{"id": &id})
	return l.command(cmd, func(ctx context.Context, from letters) error {
		res, err := from.retry(ctx, id)
		if err != nil {
			return err
		}
		if err := a.Tell(l.output, res, textOf("retried", res)); err != nil || res.Open == 0 {
			return err
		}
		return mongo.WithHint(fmt.Errorf("%s still open", plural(int(res.Open), "dead letter")),
			"millrace deadletters show LETTER shows the reason")
	})
}

type retried struct {
	Job string `json:"job"`
	service.LettersRetried

	Refused []deadletter.Summary `json:"refused,omitempty"`
}

func (a *app) notes() *slog.Logger { return config.NewLog(a.Stderr, "info", "text") }

// remoteLetters are those of a job of a service, which a worker reads.
type remoteLetters struct {
	*remote

	look *letterLook
}

func (r *remoteLetters) filter() service.LetterFilter {
	return service.LetterFilter{NS: r.look.ns, State: r.look.inState()}
}

func (r *remoteLetters) each(ctx context.Context, do func(*deadletter.Summary) error) error {
	for f := r.filter(); ; {
		page, err := r.Letters(ctx, r.job, f)
		if err != nil {
			return err
		}
		for i := range page.Letters {
			if err := do(&deadletter.Summary{Listed: page.Letters[i], Job: r.job}); err != nil {
				return err
			}
		}
		if page.Next == "" || page.Next <= f.After {
			return nil
		}
		f.After = page.Next
	}
}

func (r *remoteLetters) one(ctx context.Context, id string) (*shownLetter, error) {
	l, err := api.Ask[service.WholeLetter](ctx, r.Client, http.MethodGet,
		api.At(api.PathLetter, r.job)+"?id="+url.QueryEscape(id), nil)
	return &shownLetter{r.job, l}, err
}

func (r *remoteLetters) export(ctx context.Context, w io.Writer) error {
	return r.ExportLetters(ctx, r.job, r.filter(), w)
}

func (r *remoteLetters) retry(ctx context.Context, id string) (*retried, error) {
	res, err := retryLetters(ctx, r.Client, r.job, id)
	return &retried{Job: r.job, LettersRetried: res}, err
}

func retryLetters(ctx context.Context, c *api.Client, job, id string) (service.LettersRetried, error) {
	return api.Ask[service.LettersRetried](ctx, c, http.MethodPost, api.At(api.PathLettersRetry, job),
		api.RetryLetters{ID: id})
}

type storedLetters struct{ *letterLook }

func (l *storedLetters) filter() deadletter.Filter {
	return deadletter.Filter{Job: l.job, NS: l.ns, State: deadletter.State(l.inState())}
}

func (l *storedLetters) each(ctx context.Context, do func(*deadletter.Summary) error) error {
	return deadletter.Browse(ctx, l.cluster, l.filter(), false, func(raw bson.Raw) error {
		one, err := deadletter.ReadSummary(raw)
		return then(err, func() error { return do(&one) })
	})
}

func (l *storedLetters) one(ctx context.Context, id string) (*shownLetter, error) {
	found, err := deadletter.Find(ctx, l.cluster, deadletter.Filter{ID: id})
	if err != nil || found == nil {
		return nil, err
	}
	return &shownLetter{found.Job, service.WholeLetter{Listed: found.Listed, Whole: canonical(found.Doc),
		SameID: canonical(found.Same), Other: canonical(found.Holder)}}, nil
}

func canonical(doc bson.Raw) json.RawMessage {
	if len(doc) == 0 {
		return json.RawMessage("null")
	}
	return extJSON(doc, true)
}

func (l *storedLetters) export(ctx context.Context, w io.Writer) error {
	out := bufio.NewWriter(w)
	err := deadletter.Browse(ctx, l.cluster, l.filter(), true, func(raw bson.Raw) error {
		line, err := bson.MarshalExtJSON(raw, true, false)
		if err != nil {
			return fmt.Errorf("write a dead letter as JSON: %w", err)
		}
		_, err = out.Write(append(line, '\n'))
		return err
	})
	return errors.Join(err, out.Flush())
}

func (l *storedLetters) retry(ctx context.Context, id string) (*retried, error) {
	if id != "" {
		return nil, misuse(errors.New("--id is for jobs of a service"),
			"leave it out: all open dead letters of the job are tried")
	}
	if err := l.only(ctx); err != nil {
		return nil, err
	}
	info, err := findJob(ctx, l.cluster, l.job)
	if err != nil {
		return nil, err
	}
	res := &retried{Job: l.job,
		LettersRetried: service.LettersRetried{Tried: info.Letters.Open + info.Letters.Undecided, Done: true}}
	switch info.State {
	case state.Running, state.Silent:
		err = l.askToRetry(ctx, info)
	case state.Stopped:
		return nil, misuse(job.ErrUnfinished, "start it: "+info.Resume)
	default:
		err = l.retryFinalized(ctx, res)
	}
	if err != nil {
		return nil, err
	}
	counts, err := deadletter.Counts(ctx, l.cluster)
	res.Open = counts[l.job].Open + counts[l.job].Undecided
	res.Written = max(0, res.Tried-res.Open)
	return res, err
}

func (l *storedLetters) askToRetry(ctx context.Context, j *jobInfo) error {
	c, _, err := l.client(ctx, &config.Control{Job: l.job})
	if err == nil && c == nil {
		err = errors.New("its sync has ended")
	}
	if err != nil {
		return misuse(fmt.Errorf("job %s is %s, and cannot be reached from here: %w", cli.Plain(l.job), j.lifeText(), err),
			"run this on its machine as its user; or pause and resume it, which tries them too")
	}
	defer c.Close()
	_, err = retryLetters(ctx, c, l.job, "")
	return err
}

func (l *storedLetters) retryFinalized(ctx context.Context, res *retried) error {
	c, err := l.connectFor(ctx, "target", l.target, mongo.TargetApp)
	if err != nil {
		return err
	}
	defer c.Close()
	return job.Hold(ctx, c, l.job, l.notes(), func(ctx context.Context, stopped *job.Stopped) error {
		return stopped.RetryLetters(ctx, func(one deadletter.Letter, refused error) {
			if refused != nil {
				res.Refused = append(res.Refused,
					deadletter.Summary{Job: l.job, Listed: deadletter.Listed{ID: one.ID, NS: one.NS,
						Document: bsonraw.IDText(one.DocID), State: string(one.State), Cause: string(one.Cause),
						Reason: refused.Error(), Position: one.At.String()}})
			}
		})
	})
}
