package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
)

// maxValue is NATS' default bound of a message.
const maxValue = 1<<20 - 4<<10

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

type revised interface{ At() *uint64 }

// read sets the revision. It returns ErrNotFound for a removed value.
func read[T any](e jetstream.KeyValueEntry) (*T, error) {
	if e.Operation() != jetstream.KeyValuePut {
		return nil, ErrNotFound
	}
	v := new(T)
	if r, ok := any(v).(revised); ok {
		*r.At() = e.Revision()
	}
	return v, json.Unmarshal(e.Value(), v)
}

func get[T any](ctx context.Context, kv jetstream.KeyValue, key string) (*T, error) {
	e, err := kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return read[T](e)
}

func put(ctx context.Context, kv jetstream.KeyValue, key string, v any) error {
	raw, err := encode(v)
	if err == nil {
		_, err = kv.Put(ctx, key, raw)
	}
	return err
}

// write replaces a value of the same revision (else ErrChanged), or creates one (else ErrExists).
func write(ctx context.Context, kv jetstream.KeyValue, key string, v revised) error {
	raw, err := encode(v)
	if err != nil {
		return err
	}
	at, name := v.At(), ErrChanged
	var revision uint64
	if *at > 0 {
		revision, err = kv.Update(ctx, key, raw, *at)
	} else {
		name = ErrExists
		revision, err = kv.Create(ctx, key, raw)
	}
	if err == nil {
		*at = revision
	}
	return as(name, err)
}

const changeTries = 20

// change applies do to a stored value, again after a concurrent change. An error of do stores nothing.
func change[T any](ctx context.Context, kv jetstream.KeyValue, key string, do func(*T) error) (*T, error) {
	for range changeTries {
		v, err := get[T](ctx, kv, key)
		if err == nil {
			if refused := do(v); refused != nil {
				return nil, refused
			}
			err = write(ctx, kv, key, any(v).(revised))
		}
		if !errors.Is(err, ErrChanged) {
			return v, mongo.Wrap(err, "change %s", key)
		}
	}
	return nil, mongo.Wrap(ErrChanged, "change %s", key)
}

// remove returns ErrChanged if the revision is old.
func remove(ctx context.Context, kv jetstream.KeyValue, key string, revision uint64) error {
	return as(ErrChanged, kv.Delete(ctx, key, jetstream.LastRevision(revision)))
}

// as returns name for a conflict, other errors as they are.
func as(name, err error) error {
	if conflict(err) {
		return name
	}
	return err
}

// conflict reports that a key exists or has another revision.
func conflict(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == errWrongRevision)
}
