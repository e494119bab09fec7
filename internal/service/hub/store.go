package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// maxValue bounds a value: what a NATS server takes by default.
const maxValue = 1<<20 - 4<<10

// encode is a value of a bucket, as JSON.
func encode(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write %T as JSON: %w", v, err)
	}
	if len(raw) > maxValue {
		return nil, fmt.Errorf("%T takes %d bytes, more than the %d that the store takes", v, len(raw), maxValue)
	}
	return raw, nil
}

// get reads a value and its revision, ErrNotFound where there is none.
func get[T any](ctx context.Context, kv jetstream.KeyValue, key string) (v T, revision uint64, err error) {
	e, err := kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = ErrNotFound
	}
	if err != nil {
		return v, 0, err
	}
	return v, e.Revision(), json.Unmarshal(e.Value(), &v)
}

// put stores a value, whatever was there.
func put(ctx context.Context, kv jetstream.KeyValue, key string, v any) error {
	raw, err := encode(v)
	if err == nil {
		_, err = kv.Put(ctx, key, raw)
	}
	return err
}

// create stores a value where there is none, else it is ErrExists. ttl is when the store
// forgets it; 0 is never.
func create(ctx context.Context, kv jetstream.KeyValue, key string, v any, ttl time.Duration) (revision uint64,
	err error) {
	raw, err := encode(v)
	if err != nil {
		return 0, err
	}
	var options []jetstream.KVCreateOpt
	if ttl > 0 {
		options = append(options, jetstream.KeyTTL(ttl))
	}
	revision, err = kv.Create(ctx, key, raw, options...)
	return revision, as(ErrExists, err)
}

// update stores a value over the one of a revision, else it is ErrChanged.
func update(ctx context.Context, kv jetstream.KeyValue, key string, v any, revision uint64) (uint64, error) {
	raw, err := encode(v)
	if err != nil {
		return 0, err
	}
	revision, err = kv.Update(ctx, key, raw, revision)
	return revision, as(ErrChanged, err)
}

// remove removes the value of a revision, else it is ErrChanged.
func remove(ctx context.Context, kv jetstream.KeyValue, key string, revision uint64) error {
	return as(ErrChanged, kv.Delete(ctx, key, jetstream.LastRevision(revision)))
}

// as is an error by a name of ours where a key is at another revision than was expected.
func as(name, err error) error {
	if conflict(err) {
		return name
	}
	return err
}

// conflict reports that a key is at another revision than was expected, or is there.
func conflict(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == errWrongRevision)
}
