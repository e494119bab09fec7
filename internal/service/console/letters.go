package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/state/deadletter"
)

const (
	lettersOnPage = 50
	// lettersTime bounds a worker's answer.
	lettersTime = 19 * time.Second
)

type lettersPage struct {
	Job              string
	Operator         bool
	States           []string
	State, NS, After string
	Letters          []deadletter.Listed
	Next             string
	Asked            bool // a worker has answered
}

func lettersPath(job string) string { return "/jobs/" + url.PathEscape(job) + "/deadletters" }

func (c *console) showLetters(w http.ResponseWriter, r *http.Request, v *visit, what said) error {
	name, q := r.PathValue("name"), r.URL.Query()
	if _, err := c.Desk.Job(v.who, name); err != nil {
		return err
	}
	p := lettersPage{Job: name, Operator: v.who.Role.May(service.Operator), States: operate.LetterStates(),
		State: q.Get("state"), NS: q.Get("ns"), After: q.Get("cursor")}
	ctx, cancel := context.WithTimeout(r.Context(), lettersTime)
	defer cancel()
	list, err := c.Desk.Letters(ctx, v.who, name,
		service.LetterFilter{NS: p.NS, State: p.State, After: p.After, Limit: lettersOnPage})
	f := c.page(v, "job", "Dead letters of "+name, p)
	if err != nil {
		why := c.refusal(err)
		if what.code = why.code; what.text == "" {
			what = why
		}
	} else {
		p.Letters, p.Next, p.Asked = list.Letters, list.Next, true
		f.Data = p
	}
	if done := r.URL.Query().Get("tried"); done != "" && r.Method == http.MethodGet {
		f.Notice = triedText(q)
	}
	return c.say(w, "letters", f, what)
}

// triedText describes the result of a retry. It takes only numbers from the query.
func triedText(q url.Values) string {
	number := func(key string) int {
		n := 0
		_, _ = fmt.Sscanf(q.Get(key), "%d", &n)
		return n
	}
	text := fmt.Sprintf("%d retried, %d settled, %d open.", number("tried"), number("settled"), number("open"))
	if q.Get("more") != "" {
		text += " A worker still retries."
	}
	return text
}

type letterPage struct {
	Job    string
	Letter deadletter.Listed
	Parts  []letterPart
}

type letterPart struct{ Name, Text string }

func (c *console) showLetter(w http.ResponseWriter, r *http.Request, v *visit, what said) error {
	name := r.PathValue("name")
	ctx, cancel := context.WithTimeout(r.Context(), lettersTime)
	defer cancel()
	l, err := c.Desk.Letter(ctx, v.who, name, r.FormValue("id"))
	if err != nil {
		why := c.refusal(err)
		return said{why.code, cmp.Or(what.text, why.text), cmp.Or(what.hint, why.hint)}
	}
	p := letterPage{Job: name, Letter: l.Listed}
	for _, part := range []struct {
		name string
		raw  json.RawMessage
	}{{"The document", l.Whole}, {"On the target, with this _id", l.SameID}, {"On the target, with the key", l.Other}} {
		if len(part.raw) > 0 && !bytes.Equal(part.raw, []byte("null")) {
			p.Parts = append(p.Parts, letterPart{part.name, indented(part.raw)})
		}
	}
	return c.say(w, "letter", c.page(v, "job", "Dead letter of "+name, p), what)
}

func indented(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return string(raw)
	}
	return b.String()
}

func (c *console) retryLetters(w http.ResponseWriter, r *http.Request, v *visit) error {
	name, id := r.PathValue("name"), r.PostForm.Get("id")
	ctx, cancel := context.WithTimeout(r.Context(), lettersTime)
	defer cancel()
	res, err := c.Desk.RetryLetters(ctx, v.who, name, id)
	if err != nil {
		if id != "" {
			return c.showLetter(w, r, v, c.refusal(err))
		}
		return c.showLetters(w, r, v, c.refusal(err))
	}
	to := fmt.Sprintf("%s?tried=%d&settled=%d&open=%d", lettersPath(name), res.Tried, res.Written, res.Open)
	if !res.Done {
		to += "&more=1"
	}
	return lead(w, r, to)
}

// exportLetters sends dead letters as a file. It is a form, so that links of other sites cannot read it.
func (c *console) exportLetters(w http.ResponseWriter, r *http.Request, v *visit) error {
	name := r.PathValue("name")
	f := service.LetterFilter{NS: r.PostForm.Get("ns"), State: r.PostForm.Get("state")}
	server.Extend(w, 2*lettersTime)
	begun := false
	err := c.Desk.ExportLetters(r.Context(), v.who, name, f, func() io.Writer {
		begun = true
		w.Header().Set("Content-Type", "application/x-ndjson")
		w.Header().Set("Content-Disposition", `attachment; filename="deadletters.jsonl"`)
		return server.SlowWriter(w, 2*lettersTime)
	})
	switch {
	case err != nil && begun:
		c.Log.Warn("an export of dead letters failed", "job", name, "error", err)
		panic(http.ErrAbortHandler) // the browser reports it
	case err != nil:
		return c.showLetters(w, r, v, c.refusal(err))
	}
	return nil
}
