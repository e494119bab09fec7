package service

import (
	"bytes"
	"encoding/json"

	"github.com/millrace/millrace/internal/state/deadletter"
)

// Question is a request to a worker, which has a job's secrets.
type Question struct {
	Job     string       `json:"job"`
	UID     string       `json:"uid"`
	What    QuestionKind `json:"what"`
	Letters LetterFilter `json:"letters"`
	// Draft is set in questions about a job that does not exist yet. It has no UID.
	Draft *DraftQuestion `json:"draft,omitempty"`
}

type QuestionKind string

const (
	AskLetters       QuestionKind = "letters"        // a page of them
	AskLetter        QuestionKind = "letter"         // one with its document
	AskLettersExport QuestionKind = "letters export" // a piece of the export
	AskLettersRetry  QuestionKind = "letters retry"

	AskInspect  QuestionKind = "inspect"  // the clusters of a draft
	AskPrecheck QuestionKind = "precheck" // what a draft would do
	AskSample   QuestionKind = "sample"   // documents before and after its rules
)

// LetterFilter selects dead letters of a job; empty fields select all.
type LetterFilter struct {
	ID    string `json:"id,omitempty"`
	NS    string `json:"ns,omitempty"` // a collection of the target, or a database
	State string `json:"state,omitempty"`
	// After is the id of the last letter of the previous page.
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
	// Offset and Sum continue within the line of the letter after After, if its checksum is still Sum.
	Offset int    `json:"offset,omitempty"`
	Sum    string `json:"sum,omitempty"`
}

// AnswerCode says why a question has no answer.
type AnswerCode string

const (
	NoSuchLetter AnswerCode = "noSuchLetter"
	NotNow       AnswerCode = "notNow" // possible later
	Trouble      AnswerCode = "trouble"
)

// Answer has Body, or says why there is none.
type Answer struct {
	Body  json.RawMessage `json:"body,omitempty"`
	Code  AnswerCode      `json:"code,omitempty"`
	Error string          `json:"error,omitempty"`
	Hint  string          `json:"hint,omitempty"`
}

// PlainJSON encodes JSON without HTML escapes.
func PlainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// Letters is a page of dead letters. Next is "" at the end. Viewers do not get reasons.
type Letters struct {
	Letters []deadletter.Listed `json:"letters"`
	Next    string              `json:"next"`
}

// WholeLetter is a letter with its document and the conflicting ones on the target: extended JSON, null, or a text
// if it is too large.
type WholeLetter struct {
	deadletter.Listed
	Whole  json.RawMessage `json:"document"`
	SameID json.RawMessage `json:"sameId"`
	Other  json.RawMessage `json:"other"`
}

// LettersPiece is a part of an export in lines of extended JSON. It may end within a line. Next is nil at the end.
type LettersPiece struct {
	Lines []byte        `json:"lines"`
	Next  *LetterFilter `json:"next,omitempty"`
}

// LettersRetried is the outcome of a retry.
type LettersRetried struct {
	Tried   int64 `json:"tried"`
	Written int64 `json:"written"`
	Open    int64 `json:"open"`
	// Done is false while the worker still retries.
	Done bool `json:"done"`
}
