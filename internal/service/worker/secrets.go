package worker

import (
	"strings"

	"github.com/millrace/millrace/internal/mongo"
)

// minHidden is the shortest secret that is looked for: shorter ones are in many words.
const minHidden = 4

// secrets are what texts are not to show: connection strings with their passwords, and
// keys.
type secrets []string

func (s *secrets) add(secret string) {
	if secret = strings.TrimSpace(secret); len(secret) >= minHidden {
		*s = append(*s, secret)
	}
}

// hide is a text without them.
func (s secrets) hide(text string) string {
	for _, secret := range s {
		text = mongo.Hide(text, secret)
	}
	return text
}
