package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// storedLetters are those on a target.
type storedLetters struct {
	*app
	*letterLook
}

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
	return &shownLetter{found.Summary, canonical(found.Doc), canonical(found.Same), canonical(found.Holder)}, nil
}

// canonical is a document as extended JSON, null for none.
func canonical(doc bson.Raw) json.RawMessage {
	if len(doc) == 0 {
		return json.RawMessage("null")
	}
	raw, err := bson.MarshalExtJSON(doc, true, false)
	if err != nil {
		raw, _ = json.Marshal("not readable: " + err.Error())
	}
	return raw
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
		return nil, cli.WithCode(cli.ExitUsage, errors.New("--id is for jobs of a service"))
	}
	if err := l.only(ctx); err != nil {
		return nil, err
	}
	info, err := findJob(ctx, l.cluster, l.job)
	if err != nil {
		return nil, err
	}
	res := &retried{Job: l.job, LettersRetried: service.LettersRetried{Tried: info.Letters.Open + info.Letters.Undecided, Done: true}}
	switch info.State {
	case state.Running, state.Silent:
		err = l.askToRetry(ctx, info)
	case state.Stopped:
		return nil, cli.WithCode(cli.ExitUsage, mongo.WithHint(job.ErrUnfinished, "start it: "+info.Resume))
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

// askToRetry has the job's own process do it.
func (l *storedLetters) askToRetry(ctx context.Context, j *jobInfo) error {
	c, err := l.client(ctx, &config.Control{Job: l.job}, false)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, mongo.WithHint(fmt.Errorf("job %s is %s, and cannot be reached from here: %w", cli.Plain(l.job), j.lifeText(), err),
			"run this on its machine as its user; or pause and resume it, which tries them too"))
	}
	defer c.Close()
	_, err = c.RetryLetters(ctx, l.job, "")
	return err
}

// retryFinalized writes the letters of a job that no process will run again.
func (l *storedLetters) retryFinalized(ctx context.Context, res *retried) error {
	c, err := l.connectFor(ctx, "target", l.target, mongo.TargetApp)
	if err != nil {
		return err
	}
	defer c.Close()
	return job.Hold(ctx, c, l.job, l.notes(), func(ctx context.Context, held *job.Stopped) error {
		return held.RetryLetters(ctx, func(one deadletter.Letter, refused error) {
			if refused != nil {
				res.Refused = append(res.Refused, deadletter.Summary{ID: one.ID, Job: l.job, NS: one.NS, Document: bsonraw.IDText(one.DocID),
					State: string(one.State), Cause: string(one.Cause), Reason: refused.Error(), Position: one.At.String()})
			}
		})
	})
}
