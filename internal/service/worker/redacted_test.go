package worker

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
)

// TestRedacted: an error about a draft has nothing of what its settings refer to, and keeps
// its hint.
func TestRedacted(t *testing.T) {
	const uri = "mongodb://ada:geheimnis%20x@h:1/"
	d := &drafted{Worker: New(Options{Access: config.Access{
		Secret: func(string, string) (string, error) { return uri + "\n", nil }}})}
	if got, err := d.noting(d.secrets.add).Secret("a", "env:A"); err != nil || got != uri+"\n" {
		t.Fatal(got, err)
	}
	err := d.hide(mongo.WithHint(errors.New("cannot reach "+uri+" with geheimnis x or geheimnis%20x"), "the hint"))
	if text := err.Error(); strings.Contains(text, "geheimnis") || !strings.Contains(text, "cannot reach") ||
		mongo.HintOf(err) != "the hint" {
		t.Errorf("%q, %q", text, mongo.HintOf(err))
	}
	if d.hide(nil) != nil {
		t.Error("an error of none")
	}
}
