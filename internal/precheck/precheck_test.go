package precheck

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
)

func TestList(t *testing.T) {
	var l List
	l.Add(OK, "versions", "fine", "")
	l.Add(Warn, "lag", "3 s behind", "wait")
	if l.Failed() || l.Err() != nil {
		t.Errorf("%v", l.Err())
	}
	var log bytes.Buffer
	l.LogWarnings(slog.New(slog.NewTextHandler(&log, nil)))
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "3 s behind") ||
		!strings.Contains(s, "hint=wait") {
		t.Errorf("%s", s)
	}

	l.Add(Fail, "source", "no replica set", "initiate it")
	if err := l.Err(); !l.Failed() || err.Error() != "precheck source: no replica set" ||
		mongo.HintOf(err) != "initiate it" {
		t.Errorf("%v", err)
	}

	l.Add(Fail, "target", "too old", "")
	const want = "2 checks failed:\n  source: no replica set\n    hint: initiate it\n  target: too old"
	if err := l.Err(); err.Error() != want {
		t.Errorf("%v", err)
	}
}

// TestSkips: a failed check names the settings that have it pass; one that did not fail
// names none.
func TestSkips(t *testing.T) {
	for _, c := range []struct {
		check Check
		want  []string
	}{
		{Check{Level: Fail, Name: "versions",
			Hint: "use a target at least as new, or accept the risk with --allow-downgrade"}, []string{"allow-downgrade: true"}},
		{Check{Level: Fail, Name: "names",
			Hint: "did you mean --allow-downgrades? --allow-missing accepts what is yet to come"},
			[]string{"allow-missing: true"}},
		{Check{Level: Fail, Name: checkExisting, Hint: "drop them"}, []string{"on-existing: merge", "on-existing: drop"}},
		{Check{Level: Warn, Name: checkExisting}, nil},
		{Check{Level: Fail, Name: "oplog", Hint: "begin anew with --restart and --on-existing drop"}, nil},
	} {
		if got := c.check.Skips(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c.check, got)
		}
	}
}
