package alert

import (
	"strings"
	"time"
	"unicode"

	"github.com/millrace/millrace/internal/service"
)

// Event is the change of an alert.
type Event string

// The events.
const (
	Fired    Event = "fired"
	Resolved Event = "resolved"
)

// Notice is the JSON that a receiver gets.
type Notice struct {
	Event Event `json:"event"`
	// ID identifies the alert. ID and Event identify a notice, also when it comes twice.
	ID   string            `json:"id"`
	Kind service.AlertKind `json:"kind"`
	Job  string            `json:"job"`
	// Text is the finding, Hint the remedy, Ending the reason why it is over.
	Text       string     `json:"text"`
	Hint       string     `json:"hint"`
	Ending     string     `json:"ending"`
	FiredAt    time.Time  `json:"firedAt"`
	ResolvedAt *time.Time `json:"resolvedAt"`
}

// maxText bounds a text of a notice, in bytes.
const maxText = 2000

func notice(event Event, a *service.Alert) Notice {
	return Notice{Event: event, ID: a.ID, Kind: a.Kind, Job: a.Job, Text: plain(a.Text), Hint: plain(a.Hint),
		Ending: plain(a.Ending), FiredAt: a.FiredAt, ResolvedAt: a.ResolvedAt}
}

// plain returns foreign text as one line of graphic characters, of at most maxText bytes.
func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsGraphic(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
	return service.Short(text, maxText)
}
