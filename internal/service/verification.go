package service

import (
	"fmt"
	"regexp"
	"time"
)

// VerifyOptions are what a verification compares, and how.
type VerifyOptions struct {
	// SamplePercent is how much of each collection is compared; 0 is all of it.
	SamplePercent float64 `json:"samplePercent,omitempty"`
	// Include are patterns of source collections, of those that the job keeps; none is all.
	Include []string `json:"include,omitempty"`
	// PatienceSeconds is how long a changing document is rechecked before it counts as different; 0 is 60.
	PatienceSeconds int `json:"patienceSeconds,omitempty"`
	// BytesPerSecond holds reading both sides to a rate; 0 does not.
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// NoValues has the service store only _ids and field names of documents that differ.
	NoValues bool `json:"noValues,omitempty"`
}

// The bounds of VerifyOptions.
const (
	// LeastVerifyRate is the lowest rate: servers end cursors that rest too long.
	LeastVerifyRate = 100_000
	// MaxPatience is in seconds.
	MaxPatience = 3600
	maxPatterns = 100
	maxPattern  = 300
)

// Check says what is wrong.
func (o *VerifyOptions) Check() error {
	switch {
	case !(o.SamplePercent >= 0 && o.SamplePercent <= 100):
		return fmt.Errorf("a sample of %g percent is none", o.SamplePercent)
	case o.PatienceSeconds < 0 || o.PatienceSeconds > MaxPatience:
		return fmt.Errorf("a patience of %d seconds is not between 0 and %d", o.PatienceSeconds, MaxPatience)
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

// VerifySchedule has a job that follows be verified again and again.
type VerifySchedule struct {
	// EveryHours is how often, at whole multiples of it since the beginning of 1970.
	EveryHours     int     `json:"everyHours"`
	SamplePercent  float64 `json:"samplePercent"`
	BytesPerSecond int64   `json:"bytesPerSecond"`
	NoValues       bool    `json:"noValues,omitempty"`
}

// maxEvery is a year of hours.
const maxEvery = 365 * 24

// Check says what is wrong.
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

// Options are those of each verification of the schedule.
func (s *VerifySchedule) Options() VerifyOptions {
	return VerifyOptions{SamplePercent: s.SamplePercent, BytesPerSecond: s.BytesPerSecond, NoValues: s.NoValues}
}

// Slot is the id of the verification that the schedule has at a time.
func (s *VerifySchedule) Slot(now time.Time) string {
	return "scheduled-" + now.UTC().Truncate(time.Duration(s.EveryHours)*time.Hour).Format("20060102T150405Z")
}

// VerifyState is how a verification stands.
type VerifyState string

// The states of a verification.
const (
	VerifyQueued    VerifyState = "queued" // no worker has it
	VerifyRunning   VerifyState = "running"
	VerifySame      VerifyState = "same"
	VerifyDifferent VerifyState = "different"
	VerifyFailed    VerifyState = "failed" // it has come to no result
	VerifyCanceled  VerifyState = "canceled"
)

// Final reports that nothing more comes.
func (s VerifyState) Final() bool { return s != VerifyQueued && s != VerifyRunning }

// VerifyWish is a verification as somebody wants it.
type VerifyWish struct {
	ID  string `json:"id"`
	Job string `json:"job"`
	// UID is that of the job's definition.
	UID       string        `json:"uid"`
	Options   VerifyOptions `json:"options"`
	Scheduled bool          `json:"scheduled,omitempty"`
	// Repair is nil of a verification that changes nothing.
	Repair    *RepairWish `json:"repair,omitempty"`
	CreatedAt time.Time   `json:"createdAt"`
	CreatedBy string      `json:"createdBy"`
	// CanceledBy is who has called it off, "" is nobody.
	CanceledBy string `json:"canceledBy,omitempty"`
	Stored
}

// CheckVerifyID checks the id of a verification: it is a key of the store and a part of paths.
func CheckVerifyID(id string) error {
	if !regexp.MustCompile(`^[0-9A-Za-z_-]{1,64}$`).MatchString(id) {
		return fmt.Errorf("%.70q is no id of a verification: want up to 64 letters, digits, dashes and underlines", id)
	}
	return nil
}

// VerifyProgress is how far a verification is. Documents and bytes are of both sides.
type VerifyProgress struct {
	Docs             int64 `json:"docs"`
	DocsTotal        int64 `json:"docsTotal"` // estimated; growing while collections are begun
	Bytes            int64 `json:"bytes"`
	Collections      int64 `json:"collections"`
	CollectionsTotal int64 `json:"collectionsTotal"`
	// Rechecking are documents that are looked at again.
	Rechecking  int64 `json:"rechecking"`
	Differences int64 `json:"differences"`
}

// VerifyHelper is another worker that reads parts, or has.
type VerifyHelper struct {
	Worker string `json:"worker"`
	Parts  int    `json:"parts"` // that it reads now
	Docs   int64  `json:"docs"`
	Bytes  int64  `json:"bytes"`
}

// VerifyReport is what the worker says that has a verification, or had it last.
type VerifyReport struct {
	Run    string `json:"run"`
	Worker string `json:"worker"`
	// Attempt counts the workers that have begun it: each begins from the start.
	Attempt   int            `json:"attempt"`
	State     VerifyState    `json:"state"`
	At        time.Time      `json:"at"`
	StartedAt time.Time      `json:"startedAt"`
	EndedAt   *time.Time     `json:"endedAt,omitempty"`
	Progress  VerifyProgress `json:"progress"`
	// Lendable is how many parts other workers may read now, Helpers who has read some.
	Lendable int            `json:"lendable,omitempty"`
	Helpers  []VerifyHelper `json:"helpers,omitempty"`
	// Waits says what differences wait for before they are told, "" for nothing.
	Waits string `json:"waits,omitempty"`
	// Repair is nil of a verification that changes nothing.
	Repair *RepairProgress `json:"repair,omitempty"`
	// Schema are differences of collections, options, indexes and views.
	Schema int64  `json:"schema"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// Verification is all that is known of one, but for what it has found.
type Verification struct {
	Wish VerifyWish
	// Report is nil where no worker has had it.
	Report *VerifyReport
	// Lease is that of the job's verifications, nil where nobody has it.
	Lease *Lease
}

// State is how it stands.
func (v *Verification) State() VerifyState {
	switch r := v.Report; {
	case r != nil && r.State.Final():
		return r.State
	case v.Wish.CanceledBy != "":
		return VerifyCanceled
	case r != nil && v.Lease != nil && v.Lease.Run == r.Run:
		return VerifyRunning
	}
	return VerifyQueued
}

// Open reports that it is to be run, or is.
func (v *Verification) Open() bool { return !v.State().Final() }

// KeptVerifications is how many finished verifications of a job are kept.
const KeptVerifications = 20

// Findings are what a verification has found. They are bounded in bytes.
type Findings struct {
	Collections []VerifiedCollection `json:"collections"`
	// CollectionsLeftOut is how many are not listed.
	CollectionsLeftOut int `json:"collectionsLeftOut,omitempty"`
	// Differences are the first ones of each collection.
	Differences []DocumentDifference `json:"differences"`
	// DifferencesLeftOut is how many are not listed.
	DifferencesLeftOut int64              `json:"differencesLeftOut,omitempty"`
	Schema             []SchemaDifference `json:"schema"`
	SchemaLeftOut      int                `json:"schemaLeftOut,omitempty"`
	// Expected is how much differs as the rules have it, or until a job is finalized.
	Expected int      `json:"expected,omitempty"`
	Notes    []string `json:"notes,omitempty"`
	// WithValues says that the differences have both sides.
	WithValues bool `json:"withValues"`
	// Repaired are the documents that were to be repaired, those first that were refused.
	Repaired        []RepairedDocument `json:"repaired,omitempty"`
	RepairedLeftOut int                `json:"repairedLeftOut,omitempty"`
}

// VerifiedCollection is a collection that was compared.
type VerifiedCollection struct {
	NS         string `json:"ns"`
	TargetNS   string `json:"targetNs"`
	SourceDocs int64  `json:"sourceDocs"`
	TargetDocs int64  `json:"targetDocs"`
	Bytes      int64  `json:"bytes"`
	// Rechecked are documents that were read again, Settled those that were equal in the end.
	Rechecked   int64 `json:"rechecked"`
	Settled     int64 `json:"settled"`
	Differences int64 `json:"differences"`
}

// DocumentDifference is a document that differs, in extended JSON: the source's as the job maps it.
type DocumentDifference struct {
	NS       string `json:"ns"`
	TargetNS string `json:"targetNs"`
	// UUID is the source collection's in hex, "" for none. A repair is rejected for another collection.
	UUID string `json:"uuid,omitempty"`
	ID   string `json:"id"` // extended JSON
	// Key names the document for a repair, "" where it cannot be named.
	Key  string `json:"key,omitempty"`
	Kind string `json:"kind"`
	// Fields are those at the top level that differ, by name.
	Fields []string `json:"fields"`
	Source string   `json:"source,omitempty"`
	Target string   `json:"target,omitempty"`
	// Cut says that a side is shown in part.
	Cut bool `json:"cut,omitempty"`
}

// SchemaDifference is a difference of a collection, its options, its indexes or a view.
type SchemaDifference struct {
	NS     string `json:"ns"`
	What   string `json:"what"`
	Detail string `json:"detail"`
}
