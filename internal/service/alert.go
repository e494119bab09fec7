package service

import "time"

// AlertKind is what an alert is about.
type AlertKind string

// The kinds of alerts.
const (
	AlertLag        AlertKind = "lag"         // the target is too far behind
	AlertWindow     AlertKind = "window"      // the source's oplog will soon forget what the job needs
	AlertFailed     AlertKind = "failed"      // the job has ended with an error
	AlertConflict   AlertKind = "conflict"    // the target refuses documents
	AlertNoProgress AlertKind = "no-progress" // a worker has the job, and nothing moves
	AlertNoWorker   AlertKind = "no-worker"   // nobody runs the job
)

// AlertKinds are all of them.
func AlertKinds() []AlertKind {
	return []AlertKind{AlertLag, AlertWindow, AlertFailed, AlertConflict, AlertNoProgress, AlertNoWorker}
}

// Alert is something that an operator should know of. It fires once, and is resolved once.
type Alert struct {
	// ID is another one for each occurrence.
	ID   string    `json:"id"`
	Kind AlertKind `json:"kind"`
	Job  string    `json:"job"`
	// UID is that of the job's definition.
	UID string `json:"uid"`
	// Text says what is wrong, as it was when the alert fired; Hint what can be done.
	Text    string    `json:"text"`
	Hint    string    `json:"hint,omitempty"`
	FiredAt time.Time `json:"firedAt"`
	// ResolvedAt is when it was over, nil while it is not; Ending says why.
	ResolvedAt *time.Time `json:"resolvedAt,omitempty"`
	Ending     string     `json:"ending,omitempty"`
	// Told says that receivers were notified of the present state.
	Told bool `json:"told"`
	// Mark is how many refused documents receivers were notified of.
	Mark int64 `json:"mark,omitempty"`
	Stored
}

// ShownAlert is an alert as people and receivers get it.
type ShownAlert struct {
	ID         string     `json:"id"`
	Kind       AlertKind  `json:"kind"`
	Job        string     `json:"job"`
	Text       string     `json:"text"`
	Hint       string     `json:"hint"`
	FiredAt    time.Time  `json:"firedAt"`
	ResolvedAt *time.Time `json:"resolvedAt"`
	Ending     string     `json:"ending"`
}

// Shown returns what people get, with texts that text makes harmless.
func (a *Alert) Shown(text func(string) string) ShownAlert {
	return ShownAlert{a.ID, a.Kind, a.Job, text(a.Text), text(a.Hint), a.FiredAt, a.ResolvedAt, text(a.Ending)}
}

// Firing reports whether the alert is not over.
func (a *Alert) Firing() bool { return a.ResolvedAt == nil }

// Since is when the alert came to its present state.
func (a *Alert) Since() time.Time {
	if a.Firing() {
		return a.FiredAt
	}
	return *a.ResolvedAt
}
