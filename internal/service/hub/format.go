package hub

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// Format is the version of stored values and questions. A release that changes them raises it by one and works with
// the previous one, which may lose unknown fields of a definition.
const Format = 1

// The newest format of any process of the service.
const (
	bucketFormat = "millrace-format"
	keyFormat    = "newest"
)

const formatEvery = 15 * time.Second

var errFormat = errors.New("this release and the service's are too far apart")

type formats struct {
	jetstream.KeyValue
	mine int
}

// enter stores the format of this process, unless it is too far from the service's.
func (f *formats) enter(ctx context.Context) error {
	for {
		newest, revision, err := f.newest(ctx)
		if err != nil {
			return err
		}
		if err := f.apart(newest); err != nil || f.mine <= newest {
			return err
		}
		if revision == 0 {
			_, err = f.Create(ctx, keyFormat, []byte(strconv.Itoa(f.mine)))
		} else {
			_, err = f.Update(ctx, keyFormat, []byte(strconv.Itoa(f.mine)), revision)
		}
		if err == nil || !conflict(err) {
			return mongo.Wrap(err, "note the format of this release")
		}
	}
}

func (f *formats) newest(ctx context.Context) (format int, revision uint64, err error) {
	e, err := f.Get(ctx, keyFormat)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, 0, nil
	}
	if err == nil {
		format, err = strconv.Atoi(string(e.Value()))
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the format of the service: %w", err)
	}
	return format, e.Revision(), nil
}

func (f *formats) apart(newest int) error {
	hint := "take a newer release here"
	switch {
	case newest == 0 || f.mine >= newest-1 && f.mine <= newest+1:
		return nil
	case f.mine > newest:
		hint = "upgrade all processes to the releases between, one after the other"
	}
	return mongo.WithHint(fmt.Errorf("%w: it has format %d, the service %d", errFormat, f.mine, newest), hint)
}

// KeepFormat returns an error when the service has become too new for this process.
func (h *Hub) KeepFormat(ctx context.Context) error {
	for {
		if err := pace.Pause(ctx, formatEvery); err != nil {
			return context.Cause(ctx)
		}
		newest, _, err := h.formats.newest(ctx) // other calls report errors of NATS
		if err == nil {
			err = h.formats.apart(newest)
		}
		if errors.Is(err, errFormat) {
			return err
		}
	}
}
