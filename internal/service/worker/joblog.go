package worker

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

type jobLog struct {
	to     *recorder
	group  string // with a trailing dot
	fields []service.Field
}

func (h *jobLog) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (h *jobLog) Handle(_ context.Context, line slog.Record) error {
	e := &service.Entry{At: line.Time.UTC(), Kind: service.KindLog, Level: levelName(line.Level), Text: line.Message,
		Fields: slices.Clone(h.fields)}
	line.Attrs(func(a slog.Attr) bool {
		e.Fields = addField(e.Fields, h.group, a)
		return len(e.Fields) < maxFields
	})
	h.to.entry(e)
	return nil
}

func (h *jobLog) WithAttrs(list []slog.Attr) slog.Handler {
	more := *h
	more.fields = slices.Clone(h.fields)
	for _, a := range list {
		more.fields = addField(more.fields, h.group, a)
	}
	return &more
}

func (h *jobLog) WithGroup(name string) slog.Handler {
	more := *h
	if name != "" {
		more.group += name + "."
	}
	return &more
}

func addField(fields []service.Field, group string, a slog.Attr) []service.Field {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, inner := range v.Group() {
			fields = addField(fields, group, inner)
		}
		return fields
	}
	if a.Equal(slog.Attr{}) {
		return fields
	}
	text := v.String()
	switch v := v.Any().(type) {
	case error:
		text = mongo.Brief(v)
	case time.Time:
		text = v.UTC().Format(time.RFC3339)
	}
	return append(fields, service.Field{Name: group + a.Key, Value: text})
}

// minHidden is the length of the shortest secret to hide: shorter ones occur in many words.
const minHidden = 4

type secrets []string

func (s *secrets) add(secret string) {
	if secret = strings.TrimSpace(secret); len(secret) >= minHidden {
		*s = append(*s, secret)
	}
}

func (s secrets) hide(text string) string {
	for _, secret := range s {
		text = mongo.Hide(text, secret)
	}
	return text
}
