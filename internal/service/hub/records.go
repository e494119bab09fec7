package hub

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/service"
)

// The streams of what has become of jobs. A subject has the UID of a definition, so that
// a job which is made anew under the same name begins with nothing.
const (
	streamPoints = "millrace-points"
	streamEvents = "millrace-events"

	subjectEvents = "millrace.events"

	// keepRecords is how long they are kept at most.
	keepRecords = 30 * 24 * time.Hour
	// maxOfJob bounds the entries of a job of each kind.
	maxOfJob = 2000
)

// series are points of spans of one length. Longer ones are put together from shorter
// ones by the worker, so that a month is not read in spans of seconds.
type series struct {
	every           time.Duration
	stream, subject string
	bytes           int64
}

// allSeries are those that are kept, the finest first. A point takes some 200 bytes, one
// of a longer span 350: 20 jobs fit for a month in the first, 150 in the second, and 1000
// in the third. Of more the oldest go sooner.
func allSeries() []series {
	return []series{
		{service.PointEvery, streamPoints, "millrace.points", 1 << 30},
		{5 * time.Minute, streamPoints + "-5m", "millrace.points5m", 512 << 20},
		{time.Hour, streamPoints + "-1h", "millrace.points1h", 256 << 20},
	}
}

func (h *Hub) makeRecords(ctx context.Context, replicas int) (err error) {
	h.points = allSeries()
	for _, s := range h.points {
		if _, err := h.makeStream(ctx, jetstream.StreamConfig{Name: s.stream, Description: "figures of jobs over time", Subjects: []string{s.subject + ".>"}, MaxBytes: s.bytes, Replicas: replicas}); err != nil {
			return err
		}
	}
	h.events, err = h.makeStream(ctx, jetstream.StreamConfig{Name: streamEvents, Description: "what happened to jobs", Subjects: []string{subjectEvents + ".>"},
		MaxBytes: 512 << 20, MaxMsgsPerSubject: maxOfJob, Replicas: replicas})
	return err
}

func (h *Hub) makeStream(ctx context.Context, c jetstream.StreamConfig) (jetstream.Stream, error) {
	c.MaxAge, c.Discard, c.AllowDirect = keepRecords, jetstream.DiscardOld, true
	s, err := h.js.CreateOrUpdateStream(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", c.Name, err)
	}
	return s, nil
}

// forgetRecords removes the points and the entries of a job.
func (h *Hub) forgetRecords(ctx context.Context, uid string) error {
	purge := func(stream, subject string) error {
		s, err := h.js.Stream(ctx, stream)
		if err == nil {
			err = s.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
		if err != nil {
			return fmt.Errorf("empty %s of stream %s: %w", subject, stream, err)
		}
		return nil
	}
	for _, s := range h.points {
		if err := purge(s.stream, s.subject+"."+uid); err != nil {
			return err
		}
	}
	return purge(streamEvents, subjectEvents+".*."+uid)
}

// publish stores a message once, however often it is sent within two minutes under one id.
func (h *Hub) publish(ctx context.Context, subject, id string, raw []byte) error {
	if _, err := h.js.Publish(ctx, subject, raw, jetstream.WithMsgID(id)); err != nil {
		return fmt.Errorf("write %s: %w", subject, err)
	}
	return nil
}
