package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// Workers give up earlier.
const (
	askTime      = 18 * time.Second
	draftAskTime = 55 * time.Second
)

func LetterStates() []string {
	return []string{string(deadletter.Open), string(deadletter.Undecided), string(deadletter.Settled),
		string(deadletter.Removed), string(deadletter.Unmapped)}
}

// Letters returns a page of a job's dead letters. Only operators see reasons, which may quote values.
func (d *Desk) Letters(ctx context.Context, c *service.Caller, name string, f service.LetterFilter) (*service.Letters,
	error) {
	j, err := d.lettersOf(c, service.Viewer, name, f)
	if err != nil {
		return nil, err
	}
	out, err := askOf[service.Letters](ctx, d, j, service.AskLetters, f)
	if err == nil && !c.Role.May(service.Operator) {
		for i := range out.Letters {
			out.Letters[i].Reason = ""
		}
	}
	return out, err
}

// Letter returns a dead letter with its document and the conflicting ones.
func (d *Desk) Letter(ctx context.Context, c *service.Caller, name, id string) (*service.WholeLetter, error) {
	f := service.LetterFilter{ID: id}
	j, err := d.lettersOf(c, service.Operator, name, f)
	if err == nil && id == "" {
		err = refuse(Invalid, "give the id of a dead letter, as the list has it", "no dead letter is named")
	}
	if err != nil {
		return nil, err
	}
	return askOf[service.WholeLetter](ctx, d, j, service.AskLetter, f)
}

// ExportLetters writes canonical extended JSON, one a line, to what begun returns after the first answer.
func (d *Desk) ExportLetters(ctx context.Context, c *service.Caller, name string, f service.LetterFilter,
	begun func() io.Writer) error {
	j, err := d.notedLetters(ctx, request{caller: c, needed: service.Operator, what: "export dead letters", job: name}, f)
	if err != nil {
		return err
	}
	var w io.Writer
	for {
		piece, err := askOf[service.LettersPiece](ctx, d, j, service.AskLettersExport, f)
		if err != nil {
			return err
		}
		if w == nil {
			w = begun()
		}
		if _, err := w.Write(piece.Lines); err != nil {
			return fmt.Errorf("send dead letters: %w", err)
		}
		if piece.Next == nil {
			return nil
		}
		if len(piece.Lines) == 0 {
			return fmt.Errorf("export dead letters of job %s: the worker gives nothing more, and not the end", name)
		}
		f = *piece.Next
	}
}

// RetryLetters retries a job's open dead letters, or the one with an id.
func (d *Desk) RetryLetters(ctx context.Context, c *service.Caller, name, id string) (*service.LettersRetried, error) {
	f := service.LetterFilter{ID: id}
	j, err := d.notedLetters(ctx, request{caller: c, needed: service.Operator, what: "retry dead letters", job: name}, f)
	if err != nil {
		return nil, err
	}
	return askOf[service.LettersRetried](ctx, d, j, service.AskLettersRetry, f)
}

func (d *Desk) notedLetters(ctx context.Context, q request, f service.LetterFilter) (*service.Job, error) {
	j, err := d.lettersOf(q.caller, q.needed, q.job, f)
	if err != nil {
		return nil, d.refused(ctx, q, err)
	}
	if err := d.changing(ctx, q); err != nil {
		return nil, err
	}
	return j, d.note(ctx, q.caller, service.Change{What: q.what, Job: q.job})
}

const maxLetterText = 1000

func (d *Desk) lettersOf(c *service.Caller, needed service.Role, name string, f service.LetterFilter) (*service.Job,
	error) {
	if service.CheckName(name) != nil {
		return nil, missing(name)
	}
	if err := allowed(c, needed, name); err != nil {
		return nil, err
	}
	if f.State != "" && !slices.Contains(LetterStates(), f.State) {
		return nil, refuse(Invalid, fmt.Sprintf("use one of %v", LetterStates()), "%.40q is not a state of a dead letter",
			f.State)
	}
	if len(f.ID) > maxLetterText || len(f.NS) > maxLetterText || len(f.After) > maxLetterText {
		return nil, refuse(Invalid, "", "an id or a name of a dead letter takes up to %d bytes", maxLetterText)
	}
	if strings.ContainsRune(f.NS+f.ID, 0) {
		return nil, refuse(Invalid, "", "an id or a name of a dead letter has no NUL character")
	}
	j := d.View.Job(name)
	if j == nil {
		return nil, missing(name)
	}
	return j, nil
}

func askOf[T any](ctx context.Context, d *Desk, j *service.Job, what service.QuestionKind,
	f service.LetterFilter) (*T, error) {
	workers := able(d.View, &j.Definition)
	switch {
	case j.Lease != nil:
		workers = []service.Worker{{Name: j.Lease.Worker}}
	case len(workers) == 0:
		return nil, refuse(Conflict, "start a worker that has the job's labels",
			"no worker can look at the target of job %q", j.Definition.Name)
	}
	return ask[T](ctx, d, workers[:1],
		&service.Question{Job: j.Definition.Name, UID: j.Definition.UID, What: what, Letters: f})
}

func ask[T any](ctx context.Context, d *Desk, workers []service.Worker, q *service.Question) (*T, error) {
	question, err := service.PlainJSON(q)
	if err != nil {
		return nil, fmt.Errorf("write a question: %w", err)
	}
	if len(question) > hub.MaxAnswer-1024 {
		return nil, refuse(Invalid, "use patterns in place of lists", "the settings are too long to be asked about")
	}
	limit := askTime
	if q.Draft != nil {
		limit = draftAskTime
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var silent []string
	for _, w := range workers {
		out, a, err := hub.AskFor[T](waiting, d.Hub, w.Name, question)
		switch {
		case err == nil && a.Code == service.NoSuchLetter:
			return nil, refuse(NotFound, "see the list of dead letters", "%s", a.Error)
		case err == nil && a.Code != "": // meant for users
			return nil, refuse(Conflict, a.Hint, "%s", a.Error)
		case err == nil:
			return out, nil
		}
		if !errors.Is(err, hub.ErrNoAnswer) || ctx.Err() != nil {
			return nil, err
		}
		if silent = append(silent, w.Name); waiting.Err() != nil {
			break
		}
	}
	return nil, refuse(Conflict, "try again in a moment; the workers' logs may say more", "no answer from worker %s",
		strings.Join(silent, ", "))
}

func able(v *hub.View, def *service.Definition) []service.Worker {
	list := slices.DeleteFunc(v.Workers(), func(w service.Worker) bool { return w.Draining || !def.Fits(w.Labels) })
	slices.SortStableFunc(list, func(a, b service.Worker) int { return cmp.Compare(len(a.Jobs), len(b.Jobs)) })
	return list
}

const maxDraftText = 1000

// InspectDraft returns what a worker finds on the clusters of a draft.
func (d *Desk) InspectDraft(ctx context.Context, c *service.Caller, draft service.Definition,
	ask service.InspectAsk) (*service.Inspection, error) {
	if len(ask.After) > maxDraftText || len(ask.Search) > maxDraftText {
		return nil, refuse(Invalid, "", "a place in the list and a part of a name take up to %d bytes", maxDraftText)
	}
	return askDraft[service.Inspection](ctx, d, c, draft,
		service.Question{What: service.AskInspect, Draft: &service.DraftQuestion{Inspect: ask}})
}

func (d *Desk) PrecheckDraft(ctx context.Context, c *service.Caller,
	draft service.Definition) (*service.DraftPlan, error) {
	return askDraft[service.DraftPlan](ctx, d, c, draft,
		service.Question{What: service.AskPrecheck, Draft: &service.DraftQuestion{}})
}

// SampleDraft returns documents before and after the rules of a draft. It notes that in the audit trail.
func (d *Desk) SampleDraft(ctx context.Context, c *service.Caller, draft service.Definition,
	ask service.SampleAsk) (*service.DraftSample, error) {
	db, coll := mongo.SplitNS(ask.NS)
	if db == "" || coll == "" || len(ask.NS) > maxDraftText || strings.ContainsRune(ask.NS, 0) {
		return nil, refuse(Invalid, "write it as db.coll", "%.100q names no collection", ask.NS)
	}
	if mongo.IsInternal(db) { // they have credentials, and the names and changes of all collections
		return nil, refuse(Invalid, "name a collection that jobs copy",
			"%.100q is of servers or of millrace: no job copies it", ask.NS)
	}
	q := request{caller: c, job: draft.Name, what: "sample documents of " + strings.ToValidUTF8(ask.NS, "\ufffd")}
	if err := d.mayDraft(ctx, c, draft); err != nil {
		if service.CheckName(draft.Name) != nil {
			return nil, err
		}
		return nil, d.refused(ctx, q, err)
	}
	if err := d.changing(ctx, q); err != nil {
		return nil, err
	}
	if err := d.note(ctx, c, service.Change{What: q.what, Job: q.job}); err != nil {
		return nil, err
	}
	return askDraft[service.DraftSample](ctx, d, c, draft,
		service.Question{What: service.AskSample, Draft: &service.DraftQuestion{Sample: ask}})
}

func (d *Desk) mayDraft(ctx context.Context, c *service.Caller, draft service.Definition) error {
	if err := checkName(draft.Name); err != nil {
		return err
	}
	if err := allowed(c, service.Admin, draft.Name); err != nil {
		return err
	}
	return d.checkSettings(ctx, c, draft.Name, draft.Settings)
}

// askDraft asks the least loaded worker first.
func askDraft[T any](ctx context.Context, d *Desk, c *service.Caller, draft service.Definition,
	q service.Question) (*T, error) {
	if err := d.mayDraft(ctx, c, draft); err != nil {
		return nil, err
	}
	workers := able(d.View, &draft)
	if len(workers) == 0 {
		return nil, refuse(Conflict, "start a worker that has them, or change the labels",
			"there is no worker with the labels of job %q", draft.Name)
	}
	q.Job, q.Draft.Settings = draft.Name, draft.Settings
	return ask[T](ctx, d, workers, &q)
}
