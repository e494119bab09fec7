package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// askTime bounds the answer of a worker, which itself gives up earlier.
const askTime = 18 * time.Second

// LetterStates returns the states of dead letters.
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
	var out service.Letters
	if err := d.ask(ctx, j, service.AskLetters, f, &out); err != nil {
		return nil, err
	}
	if !c.Role.May(service.Operator) {
		for i := range out.Letters {
			out.Letters[i].Reason = ""
		}
	}
	return &out, nil
}

// Letter returns a dead letter with its document and the conflicting ones.
func (d *Desk) Letter(ctx context.Context, c *service.Caller, name, id string) (*service.WholeLetter, error) {
	f := service.LetterFilter{ID: id}
	j, err := d.lettersOf(c, service.Operator, name, f)
	if err == nil && id == "" {
		err = refuse(Invalid, "give the id of a letter, as the list has it", "no letter is named")
	}
	if err != nil {
		return nil, err
	}
	var out service.WholeLetter
	return &out, d.ask(ctx, j, service.AskLetter, f, &out)
}

// ExportLetters writes dead letters as canonical extended JSON, one a line, to the writer of begun,
// which it calls after the first answer.
func (d *Desk) ExportLetters(ctx context.Context, c *service.Caller, name string, f service.LetterFilter,
	begun func() io.Writer) error {
	j, err := d.notedLetters(ctx, request{caller: c, needed: service.Operator, what: "export dead letters", job: name}, f)
	if err != nil {
		return err
	}
	var w io.Writer
	for {
		var piece service.LettersPiece
		if err := d.ask(ctx, j, service.AskLettersExport, f, &piece); err != nil {
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
	var out service.LettersRetried
	return &out, d.ask(ctx, j, service.AskLettersRetry, f, &out)
}

// notedLetters is lettersOf with an entry of the audit trail.
func (d *Desk) notedLetters(ctx context.Context, q request, f service.LetterFilter) (*service.Job, error) {
	j, err := d.lettersOf(q.caller, q.needed, q.job, f)
	if err != nil {
		return nil, d.refused(ctx, q, err)
	}
	return j, d.note(ctx, q.caller, service.Change{What: q.what, Job: q.job})
}

const maxLetterText = 1000

// lettersOf returns a job whose dead letters the caller may read.
func (d *Desk) lettersOf(c *service.Caller, needed service.Role, name string, f service.LetterFilter) (*service.Job,
	error) {
	if service.CheckName(name) != nil {
		return nil, missing(name)
	}
	if err := allowed(c, needed, name); err != nil {
		return nil, err
	}
	if f.State != "" && !slices.Contains(LetterStates(), f.State) {
		return nil, refuse(Invalid, fmt.Sprintf("use one of %v", LetterStates()), "%.40q is no state of a dead letter",
			f.State)
	}
	if len(f.ID) > maxLetterText || len(f.NS) > maxLetterText || len(f.After) > maxLetterText {
		return nil, refuse(Invalid, "", "an id or a name of a dead letter takes up to %d bytes", maxLetterText)
	}
	j := d.View.Job(name)
	if j == nil {
		return nil, missing(name)
	}
	return j, nil
}

// ask asks the worker that runs the job, or one that may run it: only workers have the connection
// strings.
func (d *Desk) ask(ctx context.Context, j *service.Job, what service.QuestionKind, f service.LetterFilter,
	into any) error {
	name := j.Definition.Name
	var worker string
	if j.Lease != nil {
		worker = j.Lease.Worker
	} else if able := able(d.View, &j.Definition); len(able) > 0 {
		worker = able[0].Name
	} else {
		return refuse(Conflict, "start a worker that has the job's labels", "no worker can look at the target of job %q",
			name)
	}
	raw, err := json.Marshal(service.Question{Job: name, UID: j.Definition.UID, What: what, Letters: f})
	if err != nil {
		return fmt.Errorf("write a question: %w", err)
	}
	waiting, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	raw, err = d.Hub.Ask(waiting, worker, raw)
	if errors.Is(err, hub.ErrNoAnswer) && ctx.Err() == nil {
		return refuse(Conflict, "try again in a moment; the worker's log may say more", "worker %q does not answer", worker)
	}
	if err != nil {
		return err
	}
	return readAnswer(worker, raw, into)
}

// able returns the workers that may run a job, those with the fewest jobs first.
func able(v *hub.View, def *service.Definition) []service.Worker {
	list := slices.DeleteFunc(v.Workers(), func(w service.Worker) bool { return w.Draining || !def.Fits(w.Labels) })
	slices.SortStableFunc(list, func(a, b service.Worker) int { return cmp.Compare(len(a.Jobs), len(b.Jobs)) })
	return list
}

// readAnswer decodes the answer of a worker.
func readAnswer(worker string, raw []byte, into any) error {
	var a service.Answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return fmt.Errorf("read the answer of worker %s: %w", worker, err)
	}
	switch a.Code {
	case "":
	case service.NoSuchLetter:
		return refuse(NotFound, "see the list of dead letters", "%s", a.Error)
	default: // what the worker says is meant for people
		return refuse(Conflict, a.Hint, "%s", a.Error)
	}
	if err := json.Unmarshal(a.Body, into); err != nil {
		return fmt.Errorf("read the answer of worker %s: %w", worker, err)
	}
	return nil
}
