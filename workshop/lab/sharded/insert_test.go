package sharded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// MoveRange moves a part of a chunk, or the whole; it is split off first where it
// is a part. max may be the chunk's own.
func (m *Map) MoveRange(ctx context.Context, ns string, min, max any, to string) error {
	coll, from, end, err := m.bounds(ctx, ns, min, max)
	if err != nil {
		return err
	}
	if err := m.Split(ctx, ns, from); err != nil {
		return err
	}
	chunk, err := m.chunkAt(ctx, coll, from)
	if err != nil {
		return err
	}
	raw, err := bson.Marshal(end)
	if err != nil {
		return err
	}
	if !bytes.Equal(raw, chunk.Max) {
		if err := m.Split(ctx, ns, end); err != nil {
			return err
		}
	}
	return m.move(ctx, coll, from, to)
}

// Insert writes a document to the shard that owns it, with the version by which
// the shard refuses it if it has moved meanwhile, and then to the new owner. An
// unsharded collection's goes to the database's primary shard.
func (m *Map) Insert(ctx context.Context, ns string, document any) error {
	perhaps := false // an earlier try has written it
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		on, err := m.insert(ctx, ns, document)
		if perhaps && mongo.IsDuplicateKeyError(err) {
			err = on.commits(ctx) // that it is there says not that it stays
		}
		perhaps = perhaps || err != nil && !stale(err)
		return !passes(err), err
	})
	if err != nil {
		return fmt.Errorf("lab: insert into %s: %w", ns, err)
	}
	return nil
}

// commits waits until a majority has all that the set was given so far.
func (s *set) commits(ctx context.Context) error {
	return s.client.Database("admin").RunCommand(ctx,
		bson.D{{Key: "appendOplogNote", Value: 1}, {Key: "data", Value: bson.D{}}, majority()}).Err()
}

// insert tries once, and says where.
func (m *Map) insert(ctx context.Context, ns string, document any) (*set, error) {
	db, name, _ := strings.Cut(ns, ".")
	cmd := bson.D{{Key: "insert", Value: name}, {Key: "documents", Value: bson.A{document}}, majority()}
	owner, at, err := m.ownerAt(ctx, ns, document)
	if errors.Is(err, ErrNotSharded) {
		owner, err = m.Primary(ctx, db)
	} else {
		cmd = append(cmd, bson.E{Key: "shardVersion", Value: at})
	}
	if err != nil {
		return nil, err
	}
	s, err := m.shard(owner)
	if err != nil {
		return nil, err
	}
	return s, s.client.Database(db).RunCommand(ctx, cmd).Err()
}

// ownerAt is the shard that owns a document, and its version while it does. Read
// after the chunk has gone, the version would be the one with which the shard takes
// the document for an orphan, and acknowledges it.
func (m *Map) ownerAt(ctx context.Context, ns string, document any) (owner string, version any, err error) {
	owner, err = m.OwnerOf(ctx, ns, document)
	for before := ""; err == nil && owner != before; {
		before = owner
		if version, err = m.ShardVersion(ctx, ns, owner); err == nil {
			owner, err = m.OwnerOf(ctx, ns, document)
		}
	}
	return owner, version, err
}
