package api

import (
	"time"

	"github.com/millrace/millrace/internal/service"
)

// PathAlerts is that of alerts.
const PathAlerts = Prefix + "/alerts"

// Alert is one occurrence of something that an operator should know of.
type Alert struct {
	ID   string            `json:"id"`
	Kind service.AlertKind `json:"kind"`
	Job  string            `json:"job"`
	// Text says what is wrong, Hint what can be done.
	Text    string    `json:"text"`
	Hint    string    `json:"hint"`
	FiredAt time.Time `json:"firedAt"`
	// ResolvedAt is when it was over, nil while it is not; Ending says why.
	ResolvedAt *time.Time `json:"resolvedAt"`
	Ending     string     `json:"ending"`
}

// Alerts are the present ones, by job, and those that are over, the newest first.
type Alerts struct {
	Present []Alert `json:"present"`
	Past    []Alert `json:"past"`
}

func (r records) alerts(c *call) (any, error) {
	present, past := r.desk.Alerts(c.caller, c.limit)
	return Alerts{shownAlerts(present), shownAlerts(past)}, nil
}

func shownAlerts(list []service.Alert) []Alert {
	out := make([]Alert, 0, len(list))
	for _, a := range list {
		out = append(out, Alert{ID: a.ID, Kind: a.Kind, Job: a.Job, Text: service.Short(a.Text, maxText),
			Hint: service.Short(a.Hint, maxText), FiredAt: a.FiredAt, ResolvedAt: a.ResolvedAt, Ending: a.Ending})
	}
	return out
}
