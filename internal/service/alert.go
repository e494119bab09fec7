package service

import "time"

type AlertKind string

const (
	AlertLag        AlertKind = "lag"         // the target is too far behind
	AlertWindow     AlertKind = "window"      // the source's oplog will soon overwrite what the job needs
	AlertFailed     AlertKind = "failed"      // the job has ended with an error
	AlertConflict   AlertKind = "conflict"    // the target refuses documents
	AlertNoProgress AlertKind = "no-progress" // a worker has the job, and nothing changes
	AlertNoWorker   AlertKind = "no-worker"   // no worker runs the job
)

func AlertKinds() []AlertKind {
	return []AlertKind{AlertLag, AlertWindow, AlertFailed, AlertConflict, AlertNoProgress, AlertNoWorker}
}

// Alert tells operators about a job. It fires once and is resolved once.
type Alert struct {
	ID   string    `json:"id"`
	Kind AlertKind `json:"kind"`
	Job  string    `json:"job"`
	UID  string    `json:"uid,omitempty"`
	// Text says what is wrong, Hint what to do, both as of the time when the alert fired.
	Text    string    `json:"text"`
	Hint    string    `json:"hint"`
	FiredAt time.Time `json:"firedAt"`
	// ResolvedAt is nil while the alert fires. Ending says why it ended.
	ResolvedAt *time.Time `json:"resolvedAt"`
	Ending     string     `json:"ending"`
	// Receivers were notified of the present state.
	Notified bool `json:"told,omitempty"`
	// Mark counts the refused documents of which receivers were notified.
	Mark int64 `json:"mark,omitempty"`
	Stored
}

// Shown returns what users and receivers get. text makes foreign text harmless.
func (a *Alert) Shown(text func(string) string) Alert {
	return Alert{ID: a.ID, Kind: a.Kind, Job: a.Job, Text: text(a.Text), Hint: text(a.Hint), FiredAt: a.FiredAt,
		ResolvedAt: a.ResolvedAt, Ending: text(a.Ending)}
}

func (a *Alert) Firing() bool { return a.ResolvedAt == nil }

// Since returns the time of the last change.
func (a *Alert) Since() time.Time {
	if a.Firing() {
		return a.FiredAt
	}
	return *a.ResolvedAt
}
