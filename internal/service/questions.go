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

// DraftQuestion has the settings of a draft and what is asked about it.
type DraftQuestion struct {
	Settings string     `json:"settings"`
	Inspect  InspectAsk `json:"inspect"`
	Sample   SampleAsk  `json:"sample"`
}

// InspectAsk selects collections to list.
type InspectAsk struct {
	// After is Next of the previous page, Search a part of names.
	After  string `json:"after,omitempty"`
	Search string `json:"search,omitempty"`
	// Limit 0 lists none.
	Limit int `json:"limit"`
}

// SampleAsk selects documents.
type SampleAsk struct {
	NS   string `json:"ns"`
	Docs int    `json:"docs"`
}

// Inspection describes a draft's clusters.
type Inspection struct {
	Worker string `json:"worker"`
	Source Side   `json:"source"`
	Target Side   `json:"target"`
	// Databases has one page of collections, by name. Next is "" at the end.
	Databases []InspectedDatabase `json:"databases"`
	Next      string              `json:"next"`
	// Unreadable databases are those that the source's user may not read.
	Unreadable []string `json:"unreadable"`
	// Trouble says why collections are missing.
	Trouble string `json:"trouble"`
}

// Side is a cluster, or the error of connecting to it.
type Side struct {
	Kind    string `json:"kind"`
	Version string `json:"version"`
	FCV     string `json:"fcv"`
	Set     string `json:"set"`
	// Members are hosts of a replica set, or shards, up to 100.
	Members []string `json:"members"`
	Error   string   `json:"error"`
	Hint    string   `json:"hint"`
}

type InspectedDatabase struct {
	Name        string                `json:"name"`
	Collections []InspectedCollection `json:"collections"`
}

type InspectedCollection struct {
	NS     string `json:"ns"`
	Kind   string `json:"kind"` // collection, timeseries or view
	Capped bool   `json:"capped"`
	// Documents and Bytes are estimates; -1 is unknown.
	Documents int64  `json:"documents"`
	Bytes     int64  `json:"bytes"`
	ShardKey  string `json:"shardKey"`
	// Kept collections are copied to Target.
	Kept   bool   `json:"kept"`
	Target string `json:"target"`
}

// DraftPlan is the plan of a draft, with its precheck.
type DraftPlan struct {
	Worker string `json:"worker"`
	// Ready means that no check failed.
	Ready bool `json:"ready"`
	// Resumes means that the target has a checkpoint of the job; Finalized that the job is done.
	Resumes     bool  `json:"resumes"`
	Finalized   bool  `json:"finalized"`
	Collections int   `json:"collections"`
	Documents   int64 `json:"documents"`
	Bytes       int64 `json:"bytes"`
	// Existing are the first of these collections that the target has already, ExistingTotal is their number.
	Existing      []string     `json:"existing,omitempty"`
	ExistingTotal int          `json:"existingTotal,omitempty"`
	Checks        []DraftCheck `json:"checks"`
}

type DraftCheck struct {
	Name    string `json:"name"`
	Level   string `json:"level"` // ok, warn or fail
	Message string `json:"message"`
	Hint    string `json:"hint"`
	// Skips are settings that ignore a failed check, such as "allow-downgrade: true".
	Skips []string `json:"skips"`
}

// DraftSample has documents before and after the rules.
type DraftSample struct {
	Worker string `json:"worker"`
	NS     string `json:"ns"`
	// Target is "" if the rules leave the collection out.
	Target    string           `json:"target"`
	Documents []SampleDocument `json:"documents"`
	// Cut means that some documents did not fit.
	Cut bool `json:"cut"`
}

// SampleDocument is extended JSON, or a text if it is too large. After is null if the rules leave the document
// out or, with Error, cannot map it.
type SampleDocument struct {
	Before  json.RawMessage `json:"before"`
	After   json.RawMessage `json:"after"`
	Changed bool            `json:"changed"`
	Error   string          `json:"error"`
}
