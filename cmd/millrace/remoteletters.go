package main

import (
	"context"
	"io"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// remoteLetters are those of a job of a service, which a worker reads.
type remoteLetters struct {
	*remote

	look *letterLook
}

func (r *remoteLetters) filter() service.LetterFilter {
	return service.LetterFilter{NS: r.look.ns, State: r.look.inState()}
}

func (r *remoteLetters) summary(l *service.Letter) deadletter.Summary {
	return deadletter.Summary{ID: l.ID, Job: r.job, NS: l.NS, Document: l.Document, State: l.State, Cause: l.Cause, Reason: l.Reason, Index: l.Index,
		Position: l.Position, Time: l.Time, Updated: l.Updated, Settled: l.Settled, Bytes: l.Bytes}
}

func (r *remoteLetters) each(ctx context.Context, do func(*deadletter.Summary) error) error {
	for f := r.filter(); ; {
		page, err := r.Letters(ctx, r.job, f)
		if err != nil {
			return err
		}
		for i := range page.Letters {
			one := r.summary(&page.Letters[i])
			if err := do(&one); err != nil {
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
	l, err := r.Letter(ctx, r.job, id)
	return &shownLetter{r.summary(&l.Letter), l.Whole, l.SameID, l.Other}, err
}

func (r *remoteLetters) export(ctx context.Context, w io.Writer) error {
	return r.ExportLetters(ctx, r.job, r.filter(), w)
}

func (r *remoteLetters) retry(ctx context.Context, id string) (*retried, error) {
	res, err := r.RetryLetters(ctx, r.job, id)
	return &retried{Job: r.job, LettersRetried: res}, err
}
