package service

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/verify"
)

// VerifyOptions say what to compare, and how.
type VerifyOptions struct {
	// SamplePercent is the compared share of each collection; 0 is all.
	SamplePercent float64 `json:"samplePercent,omitempty"`
	// Include are patterns of source collections; none is all of the job's.
	Include []string `json:"include,omitempty"`
	// PatienceSeconds is how long a changing document is rechecked; 0 is 60.
	PatienceSeconds int `json:"patienceSeconds,omitempty"`
	// BytesPerSecond limits reading; 0 does not.
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// NoValues stores only _ids and field names of differing documents.
	NoValues bool `json:"noValues,omitempty"`
}

const (
	// LeastVerifyRate exists because servers end idle cursors.
	LeastVerifyRate = 100_000
	// MaxPatience is in seconds.
	MaxPatience = 3600
	maxPatterns = 100
	maxPattern  = 300
)

func (o *VerifyOptions) Check() error {
	switch {
	case !(o.SamplePercent >= 0 && o.SamplePercent <= 100):
		return fmt.Errorf("a sample of %g percent is none", o.SamplePercent)
	case o.PatienceSeconds < 0 || o.PatienceSeconds > MaxPatience:
		return fmt.Errorf("patienceSeconds %d is not between 0 and %d", o.PatienceSeconds, MaxPatience)
	case o.BytesPerSecond < 0 || o.BytesPerSecond > 0 && o.BytesPerSecond < LeastVerifyRate:
		return fmt.Errorf("a rate of %d bytes a second is neither 0, which is no limit, nor at least %d", o.BytesPerSecond,
			LeastVerifyRate)
	case len(o.Include) > maxPatterns:
		return fmt.Errorf("there are %d patterns, more than %d", len(o.Include), maxPatterns)
	}
	for _, p := range o.Include {
		if p == "" || len(p) > maxPattern {
			return fmt.Errorf("a pattern has %d bytes, not 1 to %d", len(p), maxPattern)
		}
	}
	return nil
}

// VerifySchedule repeats verifications while a job follows.
type VerifySchedule struct {
	// EveryHours counts from the beginning of 1970.
	EveryHours     int     `json:"everyHours"`
	SamplePercent  float64 `json:"samplePercent"`
	BytesPerSecond int64   `json:"bytesPerSecond"`
	NoValues       bool    `json:"noValues,omitempty"`
}

const maxEvery = 365 * 24

func (s *VerifySchedule) Check() error {
	if s.EveryHours < 1 || s.EveryHours > maxEvery {
		return fmt.Errorf("every %d hours is not between 1 and %d", s.EveryHours, maxEvery)
	}
	if !(s.SamplePercent > 0) {
		return fmt.Errorf("a sample of %g percent is none", s.SamplePercent)
	}
	o := s.Options()
	return o.Check()
}

// Options returns those of each verification.
func (s *VerifySchedule) Options() VerifyOptions {
	return VerifyOptions{SamplePercent: s.SamplePercent, BytesPerSecond: s.BytesPerSecond, NoValues: s.NoValues}
}

// Slot returns the id of the verification that is due at a time.
func (s *VerifySchedule) Slot(now time.Time) string {
	return "scheduled-" + now.UTC().Truncate(time.Duration(s.EveryHours)*time.Hour).Format("20060102T150405Z")
}

type VerifyState string

// The states of a verification.
const (
	VerifyQueued    VerifyState = "queued" // no worker has it
	VerifyRunning   VerifyState = "running"
	VerifySame      VerifyState = "same"
	VerifyDifferent VerifyState = "different"
	VerifyFailed    VerifyState = "failed" // without a result
	VerifyCanceled  VerifyState = "canceled"
)

// Final reports whether the verification has ended.
func (s VerifyState) Final() bool { return s != VerifyQueued && s != VerifyRunning }

type VerifyRequest struct {
	ID        string        `json:"id"`
	Job       string        `json:"job"`
	UID       string        `json:"uid"`
	Options   VerifyOptions `json:"options"`
	Scheduled bool          `json:"scheduled,omitempty"`
	// Repair is nil without a repair.
	Repair     *RepairRequest `json:"repair,omitempty"`
	CreatedAt  time.Time      `json:"createdAt"`
	CreatedBy  string         `json:"createdBy"`
	CanceledBy string         `json:"canceledBy,omitempty"`
	Stored
}

// CheckVerifyID checks an id, which is a key of the store and part of paths.
func CheckVerifyID(id string) error {
	if !regexp.MustCompile(`^[0-9A-Za-z_-]{1,64}$`).MatchString(id) {
		return fmt.Errorf("%.70q is not an id of a verification: want up to 64 letters, digits, dashes and underlines", id)
	}
	return nil
}

// VerifyProgress counts documents and bytes of both sides.
type VerifyProgress struct {
	Docs             int64 `json:"docs"`
	DocsTotal        int64 `json:"docsTotal"` // an estimate, which grows as collections begin
	Bytes            int64 `json:"bytes"`
	Collections      int64 `json:"collections"`
	CollectionsTotal int64 `json:"collectionsTotal"`
	// Rechecking counts documents to compare again.
	Rechecking  int64 `json:"rechecking"`
	Differences int64 `json:"differences"`
}

// VerifyHelper is another worker that reads parts, or has done so: assign.Figures in the words of the API.
type VerifyHelper struct {
	Worker string `json:"worker"`
	Docs   int64  `json:"docs"`
	Bytes  int64  `json:"bytes"`
	Parts  int    `json:"parts"` // now
	Why    string `json:"-"`     // may quote values
}

// VerifyReport is what the present or last worker reported.
type VerifyReport struct {
	Run    string `json:"run"`
	Worker string `json:"worker"`
	// Attempt counts workers; each begins anew.
	Attempt   int            `json:"attempt"`
	State     VerifyState    `json:"state"`
	At        time.Time      `json:"at"`
	StartedAt time.Time      `json:"startedAt"`
	EndedAt   *time.Time     `json:"endedAt,omitempty"`
	Progress  VerifyProgress `json:"progress"`
	// Lendable counts the parts that other workers may read now.
	Lendable int            `json:"lendable,omitempty"`
	Helpers  []VerifyHelper `json:"helpers,omitempty"`
	// Waits says what the decision about differences waits for.
	Waits  string          `json:"waits,omitempty"`
	Repair *RepairProgress `json:"repair,omitempty"`
	// Schema counts differences of collections, options, indexes and views.
	Schema int64  `json:"schema"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

type Verification struct {
	Request VerifyRequest
	Report  *VerifyReport
	// Lease is that of the job's verifications, which run one at a time.
	Lease *Lease
}

// State derives the state from the request, the lease and the report.
func (v *Verification) State() VerifyState {
	switch r := v.Report; {
	case r != nil && r.State.Final():
		return r.State
	case v.Request.CanceledBy != "":
		return VerifyCanceled
	case r != nil && v.Lease != nil && v.Lease.Run == r.Run:
		return VerifyRunning
	}
	return VerifyQueued
}

func (v *Verification) Open() bool { return !v.State().Final() }

// KeptVerifications is the number of finished verifications kept per job.
const KeptVerifications = 20

// Findings are the results of a verification, bounded in bytes.
type Findings struct {
	Collections        []VerifiedCollection `json:"collections"`
	CollectionsLeftOut int                  `json:"collectionsLeftOut,omitempty"`
	// Differences has the first ones of each collection.
	Differences        []DocumentDifference `json:"differences"`
	DifferencesLeftOut int64                `json:"differencesLeftOut,omitempty"`
	// Schema has differences of collections, options, indexes and views.
	Schema        []verify.SchemaDifference `json:"schema"`
	SchemaLeftOut int                       `json:"schemaLeftOut,omitempty"`
	// Expected counts differences that the rules cause, or that finalize removes.
	Expected   int      `json:"expected,omitempty"`
	Notes      []string `json:"notes,omitempty"`
	WithValues bool     `json:"withValues"`
	// Repaired lists refused documents first.
	Repaired        []RepairedDocument `json:"repaired,omitempty"`
	RepairedLeftOut int                `json:"repairedLeftOut,omitempty"`
}

type VerifiedCollection struct {
	NS         string `json:"ns"`
	TargetNS   string `json:"targetNs"`
	SourceDocs int64  `json:"sourceDocs"`
	TargetDocs int64  `json:"targetDocs"`
	Bytes      int64  `json:"bytes"`
	// Rechecked documents were read again; Settled ones were equal then.
	Rechecked   int64 `json:"rechecked"`
	Settled     int64 `json:"settled"`
	Differences int64 `json:"differences"`
}

// DocumentDifference is a differing document in extended JSON, the source's as the job maps it.
type DocumentDifference struct {
	RepairDocument
	// Fields are the differing top-level fields, by name.
	Fields []string `json:"fields"`
	Source string   `json:"source,omitempty"`
	Target string   `json:"target,omitempty"`
	// Cut means that a side is incomplete.
	Cut bool `json:"cut,omitempty"`
}

const (
	// MaxRepair bounds the documents of a repair.
	MaxRepair      = 1000
	maxDocumentKey = 400
)

// RepairRequest asks a verification to copy documents from the source again, and to compare only these.
type RepairRequest struct {
	// Of is the verification that found them.
	Of        string `json:"of"`
	Documents int    `json:"documents"`
}

type Repair struct {
	RepairRequest
	RepairProgress
}

// Repair returns nil for a verification without a repair.
func (v *Verification) Repair() *Repair {
	if v.Request.Repair == nil {
		return nil
	}
	r := Repair{RepairRequest: *v.Request.Repair}
	if v.Report != nil && v.Report.Repair != nil {
		r.RepairProgress = *v.Report.Repair
	}
	return &r
}

// RepairDocument is a document that differs, and may be repaired.
type RepairDocument struct {
	NS       string `json:"ns"`
	TargetNS string `json:"targetNs"`
	// UUID is the source collection's in hex, "" for none. A repair rejects another collection.
	UUID string `json:"uuid,omitempty"`
	ID   string `json:"id"` // extended JSON
	// Key names the document for a repair, "" if that is impossible.
	Key  string `json:"key,omitempty"`
	Kind string `json:"kind"`
}

// RepairProgress counts documents.
type RepairProgress struct {
	Written int `json:"written"`
	Deleted int `json:"deleted"` // from the target
	Same    int `json:"same"`    // were equal
	Refused int `json:"refused"`
}

type RepairedDocument struct {
	NS       string `json:"ns"`
	TargetNS string `json:"targetNs"`
	ID       string `json:"id"` // extended JSON
	Kind     string `json:"kind"`
	Outcome  string `json:"outcome"`
	Why      string `json:"why,omitempty"`
}

// UUIDText returns a UUID in hex, "" for none.
func UUIDText(uuid bson.Binary) string { return hex.EncodeToString(uuid.Data) }

// CollectionUUID reads a text of UUIDText.
func CollectionUUID(text string) (uuid bson.Binary, err error) {
	if text == "" {
		return uuid, nil
	}
	raw, err := hex.DecodeString(text)
	if err == nil && len(raw) != 16 {
		err = fmt.Errorf("it has %d bytes", len(raw))
	}
	if err != nil {
		return uuid, fmt.Errorf("%.70q is not the UUID of a collection: %w", text, err)
	}
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: raw}, nil
}

// DocumentKey names an _id exactly, "" if it is too long.
func DocumentKey(id bson.RawValue) string {
	if len(id.Value) > maxDocumentKey {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(bsonraw.AppendID(nil, bsonraw.FromRaw(id)))
}

// DocumentID reads a key of DocumentKey.
func DocumentID(key string) (id bsonraw.ID, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(key)
	if err == nil && (len(raw) == 0 || len(raw) > maxDocumentKey+1) {
		err = fmt.Errorf("it has %d bytes", len(raw))
	}
	if err == nil {
		id = bsonraw.KeyID(string(raw))
		err = bsonraw.RawValue(id).Validate()
	}
	if err != nil {
		return id, fmt.Errorf("%.70q is not a key of a document: %w", key, err)
	}
	return id, nil
}
