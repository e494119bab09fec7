package precheck

import (
	"bytes"
	"log/slog"
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
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "3 s behind") || !strings.Contains(s, "hint=wait") {
		t.Errorf("%s", s)
	}

	l.Add(Fail, "source", "no replica set", "initiate it")
	if err := l.Err(); !l.Failed() || err.Error() != "precheck source: no replica set" || mongo.HintOf(err) != "initiate it" {
		t.Errorf("%v", err)
	}

	l.Add(Fail, "target", "too old", "")
	const want = "2 checks failed:\n  source: no replica set\n    hint: initiate it\n  target: too old"
	if err := l.Err(); err.Error() != want {
		t.Errorf("%v", err)
	}
}
