package hub

import (
	"cmp"
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// Subjects have the UID of a definition, so a new job of a name begins without records.
const (
	streamPoints = "millrace-points"
	streamEvents = "millrace-events"

	subjectEvents = "millrace.events"

	keepRecords = 30 * 24 * time.Hour
	// maxOfJob bounds the entries of a job and kind.
	maxOfJob = 2000
)

// series has points of one length. Workers merge shorter ones, so that a month is read in few points.
type series struct {
	every           time.Duration
	stream, subject string
	bytes           int64
}

// allSeries has the finest first. A point takes 200 bytes, a longer one 350: a month of 20 jobs fits into the first,
// of 150 into the second, of 1000 into the third. The oldest are dropped.
func allSeries() []series {
	return []series{
		{service.PointEvery, streamPoints, "millrace.points", 1 << 30},
		{5 * time.Minute, streamPoints + "-5m", "millrace.points5m", 512 << 20},
		{time.Hour, streamPoints + "-1h", "millrace.points1h", 256 << 20},
	}
}

// Records has points and logs of jobs. It is safe for concurrent use.
type Records struct {
	*streams
	points []series // the finest first
	log    trail[service.Entry]
}

func (r *Records) forget(ctx context.Context, uid string) error {
	purge := func(stream, subject string) error {
		s, err := r.js.Stream(ctx, stream)
		if err == nil {
			err = s.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
		return mongo.Wrap(err, "empty %s of stream %s", subject, stream)
	}
	for _, s := range r.points {
		if err := purge(s.stream, s.subject+"."+uid); err != nil {
			return err
		}
	}
	return purge(streamEvents, subjectEvents+".*."+uid)
}

// AddEntry stores an entry once for each id.
func (r *Records) AddEntry(ctx context.Context, uid, id string, e *service.Entry) error {
	return r.publish(ctx, subjectEvents+"."+string(e.Kind)+"."+uid, id, e)
}

// Entries returns a page of a job's entries, the newest first; kind "" is both.
func (r *Records) Entries(ctx context.Context, uid string, kind service.EntryKind, page service.Page) ([]service.Entry,
	error) {
	list, err := r.log.newest(ctx, subjectEvents+"."+cmp.Or(string(kind), "*")+"."+uid, page)
	return list, mongo.Wrap(err, "read the log of a job")
}

const noJob = "-"

// Audit is the audit trail. It is safe for concurrent use.
type Audit struct {
	trail[service.Change]
}

// Note adds an entry. It returns when the entry is stored.
func (a *Audit) Note(ctx context.Context, c *service.Change) error {
	about := cmp.Or(c.Job, noJob)
	raw, err := encode(c)
	if err == nil {
		_, err = a.js.Publish(ctx, subjectAudit+"."+about, raw)
	}
	return mongo.Wrap(err, "note %s of %s in the audit trail", c.What, about)
}

// Trail returns a page of entries, the newest first; job "" is all jobs.
func (a *Audit) Trail(ctx context.Context, job string, page service.Page) ([]service.Change, error) {
	list, err := a.newest(ctx, subjectAudit+"."+cmp.Or(job, ">"), page)
	return list, mongo.Wrap(err, "read the audit trail")
}
