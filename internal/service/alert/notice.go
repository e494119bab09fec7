package alert

import (
	"strings"
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

// Notice is the JSON that a receiver gets. ID and Event identify it, also when it comes twice.
type Notice struct {
	Event Event `json:"event"`
	service.ShownAlert
}

const maxText = 2000

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
