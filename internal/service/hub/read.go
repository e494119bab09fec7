package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

const (
	// batchSize is in messages, batchBytes bounds a request as well.
	batchSize  = 1000
	batchBytes = 2 << 20
	// firstWindow is how far back newest looks first, in messages of all subjects.
	firstWindow = 512
)

type streams struct{ js jetstream.JetStream }

// publish stores a message once per id within two minutes.
func (s *streams) publish(ctx context.Context, subject, id string, v any) error {
	raw, err := encode(v)
	if err == nil {
		_, err = s.js.Publish(ctx, subject, raw, jetstream.WithMsgID(id))
	}
	return mongo.Wrap(err, "write %s", subject)
}

// start is a sequence, or a time if that is 0. most bounds one request; 0 is batchSize.
type start struct {
	seq  uint64
	at   time.Time
	most int
}

// forward calls each with the messages of a subject in order until it has enough. It fails if one may be missing.
func (s *streams) forward(ctx context.Context, stream, subject string, from start,
	each func(*jetstream.RawStreamMsg) (enough bool, err error)) error {
	for {
		last, enough, err := s.batch(ctx, stream, subject, from, each)
		switch {
		case errors.Is(err, jetstreamext.ErrNoMessages):
			return nil
		case err != nil:
			return fmt.Errorf("read %s of stream %s: %w", subject, stream, err)
		case enough:
			return nil
		}
		from = start{seq: last + 1, most: from.most}
	}
}

// batch makes one request; last is the sequence that it reached.
func (s *streams) batch(ctx context.Context, stream, subject string, from start,
	each func(*jetstream.RawStreamMsg) (bool, error)) (last uint64, enough bool, err error) {
	begin := jetstreamext.GetBatchStartTime(from.at)
	if from.seq > 0 {
		begin = jetstreamext.GetBatchSeq(from.seq)
	}
	// Cancel the request when the loop below ends early.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages, err := jetstreamext.GetBatch(ctx, s.js, stream, cmp.Or(from.most, batchSize),
		jetstreamext.GetBatchSubject(subject), jetstreamext.GetBatchMaxBytes(batchBytes), begin)
	if err != nil {
		return 0, false, err
	}
	pending := ""
	for m, err := range messages {
		if err != nil {
			if errors.Is(err, jetstreamext.ErrNoMessages) && last > 0 {
				break
			}
			return last, false, err
		}
		// The client drops messages that it cannot hold.
		if before := m.Header.Get("Nats-Last-Sequence"); before != strconv.FormatUint(last, 10) {
			return last, false, fmt.Errorf("messages between %d and %d were lost on their way", last, m.Sequence)
		}
		last, pending = m.Sequence, m.Header.Get("Nats-Num-Pending")
		if enough, err := each(m); enough || err != nil {
			return last, true, err
		}
	}
	if last == 0 { // also at a timeout
		return 0, false, cmp.Or(ctx.Err(), errors.New("the store does not answer"))
	}
	return last, pending == "0", nil
}

type trail[T any] struct {
	*streams
	stream jetstream.Stream
	seq    func(*T) *uint64
}

// newest returns a page of a subject, the newest first. Streams are read forwards, so it reads growing windows from
// the end.
func (t *trail[T]) newest(ctx context.Context, subject string, page service.Page) ([]T, error) {
	info, err := t.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", t.stream.CachedInfo().Config.Name, err)
	}
	first, end := max(info.State.FirstSeq, 1), info.State.LastSeq+1
	if page.Before > 0 {
		end = min(end, page.Before)
	}
	list := []T{}
	size := uint64(max(firstWindow, 2*page.Limit))
	for end > first && len(list) < page.Limit {
		from := first
		if end-first > size {
			from = end - size
		}
		part, err := t.last(ctx, subject, from, end, page.Limit-len(list))
		if err != nil {
			return nil, err
		}
		for _, m := range slices.Backward(part) {
			var one T
			if err := json.Unmarshal(m.Data, &one); err != nil {
				return nil, fmt.Errorf("entry %d: %w", m.Sequence, err)
			}
			*t.seq(&one) = m.Sequence
			list = append(list, one)
		}
		end, size = from, size*4
	}
	return list, nil
}

// last returns up to limit last messages of a subject from one up to another, the oldest first.
func (t *trail[T]) last(ctx context.Context, subject string, from, end uint64,
	limit int) (part []*jetstream.RawStreamMsg, err error) {
	err = t.forward(ctx, t.stream.CachedInfo().Config.Name, subject, start{seq: from, most: int(min(batchSize, end-from))},
		func(m *jetstream.RawStreamMsg) (bool, error) {
			if m.Sequence >= end {
				return true, nil
			}
			if part = append(part, m); len(part) >= 2*limit {
				part = slices.Delete(part, 0, len(part)-limit)
			}
			return m.Sequence == end-1, nil
		})
	return part[max(len(part)-limit, 0):], err
}
