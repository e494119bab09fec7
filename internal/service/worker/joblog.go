package worker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
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

const conflictsEvery = time.Minute

type notices struct {
	to        *recorder
	reported  map[job.Phase]bool
	paused    bool
	conflicts int64
	last      time.Time // of the last event about conflicts
}

// newNotices starts from the last known status; nil is none.
func newNotices(to *recorder, before *job.Status) *notices {
	n := &notices{to: to, reported: map[job.Phase]bool{}}
	if before != nil {
		n.paused, n.conflicts = before.Paused, service.Refused(before)
	}
	return n
}

func (n *notices) look(s *job.Status) {
	for _, phase := range []job.Phase{job.PhaseCopying, job.PhaseIndexing, job.PhaseOverlap, job.PhaseFollowing,
		job.PhaseFinalizing} {
		if _, passed := s.PhaseSeconds[phase]; passed && !n.reported[phase] {
			n.phase(phase, s)
		}
	}
	if s.Paused != n.paused {
		n.paused = s.Paused
		n.to.event(slog.LevelInfo, map[bool]string{true: "paused", false: "resumed"}[s.Paused])
	}
	if now := service.Refused(s); now > n.conflicts && time.Since(n.last) >= conflictsEvery {
		n.to.event(slog.LevelWarn, fmt.Sprintf("conflict: the target refused %d documents more, which are kept as dead "+
			"letters", now-n.conflicts), service.Field{Name: "dead letters", Value: s.Conflicts.Text()})
		n.conflicts, n.last = now, time.Now()
	}
}

func (n *notices) phase(phase job.Phase, s *job.Status) {
	n.reported[phase] = true
	if phase != job.PhaseCopying && n.reported[job.PhaseCopying] && !n.reported[""] {
		n.reported[""] = true
		n.to.event(slog.LevelInfo, fmt.Sprintf("the copy has ended: %d documents, %s", s.Copy.Docs,
			format.Size(float64(s.Copy.Bytes))))
	}
	text := map[job.Phase]string{job.PhaseCopying: "the copy has begun", job.PhaseIndexing: "indexes are built",
		job.PhaseOverlap:   "changes made during the copy are applied",
		job.PhaseFollowing: "it follows", job.PhaseFinalizing: "it finalizes"}[phase]
	n.to.event(slog.LevelInfo, text)
}

func (n *notices) desired(was, now *service.Desired) {
	if now.Limits != nil && (was.Limits == nil || *was.Limits != *now.Limits) {
		n.limits(*now.Limits)
	}
	if l := now.Loads; l != nil && (was.Loads == nil || *was.Loads != *l) {
		n.to.event(slog.LevelInfo, fmt.Sprintf("loads changed: source %s, target %s", l.Source, l.Target))
	}
	if was.Finalize != now.Finalize {
		n.to.event(slog.LevelInfo, map[bool]string{true: "it is to finalize as soon as it follows",
			false: "the request to finalize was canceled"}[now.Finalize])
	}
}

func (n *notices) limits(r pace.Rates) {
	per := func(v int64, unit string) string {
		if v == 0 {
			return "no limit of " + unit
		}
		return fmt.Sprintf("%d %s a second", v, unit)
	}
	n.to.event(slog.LevelInfo, "limits changed: "+per(r.Docs, "documents")+", "+per(r.Bytes, "bytes"))
}
