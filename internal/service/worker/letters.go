package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/state/deadletter"
)

const (
	answerTime  = 15 * time.Second
	maxLetters  = 200
	answerBytes = 512 << 10
	// documentBytes bounds a document in an answer. The export has no bound.
	documentBytes = 200 << 10
	textBytes     = 1000
	// lettersApp is the application name of these connections.
	lettersApp = "millrace-service"
)

func (w *Worker) answer(ctx context.Context) error {
	defer w.background.Wait()
	return retry.Again(ctx, lookEvery, lookEvery, func(err error, _ time.Duration) bool {
		if ctx.Err() == nil {
			w.Log.Warn("questions cannot be heard; trying again", "error", err)
		}
		return true
	}, func() error { return w.Hub.Answer(ctx, w.Name, w.reply) })
}

type refusal struct {
	error
	code service.AnswerCode
}

func (r refusal) Unwrap() error { return r.error }

func notNow(why error) error { return refusal{why, service.NotNow} }

func (w *Worker) reply(life context.Context, question []byte) []byte {
	var q service.Question
	var a service.Answer
	err := json.Unmarshal(question, &q)
	if err == nil {
		var body any
		if body, err = w.answered(life, &q); err == nil {
			a.Body, err = service.PlainJSON(body)
		}
	}
	if err == nil && len(a.Body) > hub.MaxAnswer-1024 {
		err = fmt.Errorf("the answer has %d bytes, more than %d", len(a.Body), hub.MaxAnswer)
	}
	if err != nil {
		a = service.Answer{Code: service.Trouble, Error: mongo.Brief(err), Hint: mongo.HintOf(err)}
		if r, ok := errors.AsType[refusal](err); ok {
			a.Code = r.code
		}
	}
	raw, err := service.PlainJSON(a)
	if err != nil {
		raw = []byte(`{"code":"trouble","error":"the answer cannot be written"}`)
	}
	return raw
}

// answered returns the body. life is the worker's, for work that outlasts the answer.
func (w *Worker) answered(life context.Context, q *service.Question) (any, error) {
	if q.Draft != nil {
		return w.draft(life, q)
	}
	ctx, cancel := context.WithTimeout(life, answerTime)
	defer cancel()
	s, err := w.settings(ctx, q.Job, q.UID)
	if err != nil {
		return nil, err
	}
	c, err := mongo.Connect(ctx, s.Target, mongo.Options{AppName: lettersApp})
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	defer c.Close()
	l := &lettersOf{Worker: w, job: q.Job, target: c, filter: q.Letters}
	switch q.What {
	case service.AskLetters:
		return l.page(ctx)
	case service.AskLetter:
		return l.one(ctx)
	case service.AskLettersExport:
		return l.export(ctx)
	case service.AskLettersRetry:
		return l.retry(ctx, life, s.Target)
	}
	return nil, fmt.Errorf("worker %s of version %s does not know %q", w.Name, w.Version, q.What)
}

type lettersOf struct {
	*Worker
	job    string
	target *mongo.Cluster
	filter service.LetterFilter
}

func (l *lettersOf) chosen() deadletter.Filter {
	f := deadletter.Filter{ID: l.filter.ID, Job: l.job, NS: l.filter.NS, State: deadletter.State(l.filter.State)}
	if l.filter.ID == "" {
		f.After = l.filter.After
	}
	return f
}

func shortened(l deadletter.Listed) deadletter.Listed {
	for _, text := range []*string{&l.Document, &l.Reason, &l.Index, &l.Settled} {
		*text = service.Short(*text, textBytes)
	}
	l.Time, l.Updated = l.Time.UTC(), l.Updated.UTC()
	return l
}

var errEnough = errors.New("enough")

func (l *lettersOf) page(ctx context.Context) (*service.Letters, error) {
	limit := min(max(l.filter.Limit, 1), maxLetters)
	f := l.chosen()
	f.Limit = int64(limit) + 1
	out := &service.Letters{Letters: []deadletter.Listed{}}
	room := answerBytes
	err := deadletter.Browse(ctx, l.target, f, false, func(raw bson.Raw) error {
		read, err := deadletter.ReadSummary(raw)
		if err != nil {
			return err
		}
		one := shortened(read.Listed)
		if n := len(out.Letters); n == limit || n > 0 && !fits(&room, one) {
			out.Next = out.Letters[n-1].ID
			return errEnough
		}
		out.Letters = append(out.Letters, one)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return out, nil
}

func (l *lettersOf) one(ctx context.Context) (*service.WholeLetter, error) {
	found, err := deadletter.Find(ctx, l.target, l.chosen())
	switch {
	case err != nil:
		return nil, err
	case found == nil:
		return nil, l.missing()
	}
	return &service.WholeLetter{Listed: shortened(found.Listed), Whole: asJSON(found.Doc), SameID: asJSON(found.Same),
		Other: asJSON(found.Holder)}, nil
}

func (l *lettersOf) missing() error {
	return refusal{fmt.Errorf("job %s has no dead letter %s", l.job, service.Short(l.filter.ID, textBytes)),
		service.NoSuchLetter}
}

func asJSON(doc bson.Raw) json.RawMessage {
	return documentJSON(doc, true, documentBytes, "; the export has it")
}

// documentJSON returns extended JSON of little more than most bytes, or else a text with the size, and more.
func documentJSON(doc bson.Raw, canonical bool, most int, more string) json.RawMessage {
	if len(doc) == 0 {
		return json.RawMessage("null")
	}
	if len(doc) <= most {
		if raw, err := bson.MarshalExtJSON(doc, canonical, false); err == nil && len(raw) <= min(2*most, answerBytes/2) {
			return raw
		}
	}
	raw, _ := json.Marshal(fmt.Sprintf("a document of %d bytes%s", len(doc), more))
	return raw
}

// export returns the next piece. It continues within a line only if the line is unchanged.
func (l *lettersOf) export(ctx context.Context) (*service.LettersPiece, error) {
	f := l.chosen()
	out := &service.LettersPiece{}
	next, offset := l.filter, l.filter.Offset
	next.Offset, next.Sum = 0, ""
	err := deadletter.Browse(ctx, l.target, f, true, func(raw bson.Raw) error {
		line, err := bson.MarshalExtJSON(raw, true, false)
		if err != nil {
			return fmt.Errorf("write a dead letter as JSON: %w", err)
		}
		line = append(line, '\n')
		if sum := sumOf(line); offset > 0 && (sum != l.filter.Sum || offset >= len(line)) {
			return notNow(mongo.WithHint(errors.New("a dead letter has changed while it was exported"), "export again"))
		}
		room := answerBytes - len(out.Lines)
		if rest := line[offset:]; len(rest) > room {
			if len(out.Lines) == 0 { // longer than a piece
				out.Lines = append(out.Lines, rest[:room]...)
				next.Offset, next.Sum = offset+room, sumOf(line)
			}
			out.Next = &next
			return errEnough
		}
		out.Lines = append(out.Lines, line[offset:]...)
		offset = 0
		next.After, _ = raw.Lookup("_id").StringValueOK()
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	if l.filter.Offset > 0 && len(out.Lines) == 0 {
		return nil, notNow(mongo.WithHint(errors.New("a dead letter went while it was exported"), "export again"))
	}
	return out, nil
}

func sumOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:8])
}

// retryTime bounds the answer, retryLimit the retry.
const (
	retryTime  = 10 * time.Second
	retryLimit = 5 * time.Minute
)

// retry continues in the background if it takes long.
func (l *lettersOf) retry(ctx, life context.Context, target string) (*service.LettersRetried, error) {
	tried, not, err := l.open(ctx)
	if err = errors.Join(err, not); err != nil {
		return nil, err
	}
	try, err := l.way(target)
	if err != nil {
		return nil, err
	}
	ended, ok := l.inBackground(life, l.job, try)
	if !ok {
		return nil, notNow(mongo.WithHint(fmt.Errorf("a retry of job %s's dead letters is running", l.job),
			"look again in a moment"))
	}
	out := &service.LettersRetried{Tried: tried}
	select {
	case err = <-ended:
		if err != nil {
			return nil, err
		}
		out.Done = true
	case <-time.After(retryTime):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if out.Open, _, err = l.open(ctx); err != nil {
		return nil, err
	}
	out.Written = max(0, out.Tried-out.Open)
	return out, nil
}

// inBackground runs one retry per job at a time; ok is false if one runs.
func (w *Worker) inBackground(life context.Context, job string, do func(context.Context) error) (ended <-chan error,
	ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.retrying[job] {
		return nil, false
	}
	w.retrying[job] = true
	done := make(chan error, 1)
	w.background.Go(func() {
		ctx, cancel := context.WithTimeout(life, retryLimit)
		defer cancel()
		err := do(ctx)
		if err != nil {
			w.Log.Warn("dead letters could not be tried again", "job", job, "error", err)
		}
		w.mu.Lock()
		delete(w.retrying, job)
		w.mu.Unlock()
		done <- err
	})
	return done, true
}

// way returns how to retry: by the job that runs here, or by this worker if the job is finalized.
func (l *lettersOf) way(target string) (func(context.Context) error, error) {
	l.mu.Lock()
	u := l.units[l.job]
	l.mu.Unlock()
	var j *job.Job
	if u != nil {
		j = u.running()
	}
	state := service.Waiting
	if known := l.View.Job(l.job); known != nil {
		state = known.State()
	}
	switch {
	case j != nil && state == service.Paused:
		return nil, notNow(mongo.WithHint(fmt.Errorf("job %s is paused", l.job),
			"resume it: that tries all open dead letters"))
	case j != nil && l.filter.ID != "":
		return func(ctx context.Context) error { return j.RetryLetter(ctx, l.filter.ID) }, nil
	case j != nil:
		return j.RetryLetters, nil
	case u != nil || state != service.Finished:
		return nil, notNow(mongo.WithHint(job.ErrUnfinished, "have it run; it is "+string(state)+" now"))
	}
	return func(ctx context.Context) error {
		c, err := mongo.Connect(ctx, target, mongo.Options{AppName: mongo.TargetApp})
		if err != nil {
			return fmt.Errorf("target: %w", err)
		}
		defer c.Close()
		var ids []string
		if l.filter.ID != "" {
			ids = []string{l.filter.ID}
		}
		return job.Hold(ctx, c, l.job, l.Log, func(ctx context.Context, held *job.Stopped) error {
			return held.RetryLetters(ctx, func(deadletter.Letter, error) {}, ids...)
		})
	}, nil
}

// open counts letters to retry. not says why a single one cannot be.
func (l *lettersOf) open(ctx context.Context) (n int64, not, err error) {
	if l.filter.ID == "" {
		counts, err := deadletter.Counts(ctx, l.target)
		c := counts[l.job]
		return c.Open + c.Undecided, nil, err
	}
	not = l.missing()
	err = deadletter.Browse(ctx, l.target, l.chosen(), false, func(raw bson.Raw) error {
		s, err := deadletter.ReadSummary(raw)
		switch deadletter.State(s.State) {
		case deadletter.Open, deadletter.Undecided:
			n, not = 1, nil
		default:
			not = notNow(fmt.Errorf("the letter is %s, and only open ones are tried", s.State))
		}
		return err
	})
	return n, not, err
}
