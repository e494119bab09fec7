package oplog

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/spool"
	"github.com/millrace/millrace/internal/wire"
)

// A record of the spool is a cursor's reply as elements of wire.BatchOf. Its keys are the timestamps of
// its first and last entry.

// spoolSyncEvery bounds what is reread after the machine went down.
const spoolSyncEvery = time.Second

// spoolRoom is the room that the next reply may need.
const spoolRoom = 2 * maxReply

func spoolKey(at mongo.OpTime) uint64 { return uint64(at.TS.T)<<32 | uint64(at.TS.I) }

// atKey returns the position of a key, without its term.
func atKey(key uint64) mongo.OpTime {
	return mongo.OpTime{TS: bson.Timestamp{T: uint32(key >> 32), I: uint32(key)}, Term: -1}
}

// spooled reports whether s, which may be nil, covers a position.
func spooled(s *spool.Spool, at mongo.OpTime) bool {
	if s == nil {
		return false
	}
	first, last, ok := s.Bounds()
	return ok && first <= spoolKey(at) && spoolKey(at) <= last
}

// spoolEnd returns the position of the last entry, zero for an empty spool.
func spoolEnd(s *spool.Spool) mongo.OpTime {
	if _, last, ok := s.Bounds(); ok {
		return atKey(last)
	}
	return mongo.OpTime{}
}

// fill reads the oplog into s, from its end or, if it is empty, from the position, until ctx ends or
// reading fails. It waits while s is full. It may run concurrently with Run.
func (o *Source) fill(ctx context.Context, from mongo.OpTime, s *spool.Spool) error {
	r := o.reader(&spoolSink{s: s}, from)
	if end := spoolEnd(s); !end.IsZero() {
		r.from, r.skip = end, 1
	}
	return r.run(ctx)
}

type spoolSink struct {
	s      *spool.Spool
	synced time.Time
}

func (k *spoolSink) waitRoom(ctx context.Context, timeout time.Duration) (bool, error) {
	const look = 200 * time.Millisecond // room comes in whole segments
	t := time.NewTicker(look)
	defer t.Stop()
	return wait(ctx, t.C, timeout, func() bool { return k.s.Room(spoolRoom) })
}

func (k *spoolSink) put(c chunk) error {
	rec := spool.Record{Payload: make([]byte, 0, c.batch.Size)}
	err := c.each(func(doc []byte) error {
		e, err := parseEntry(doc)
		if err != nil {
			return err
		}
		if len(rec.Payload) == 0 {
			rec.First = spoolKey(e.at)
		}
		rec.Last = spoolKey(e.at)
		rec.Payload = append(rec.Payload, byte(bson.TypeEmbeddedDocument), 0)
		rec.Payload = append(rec.Payload, doc...)
		return nil
	})
	if err != nil || len(rec.Payload) == 0 {
		return err
	}
	if err := k.s.Append(rec); err != nil {
		return err
	}
	if time.Since(k.synced) < spoolSyncEvery {
		return nil
	}
	k.synced = time.Now()
	return k.s.Sync()
}

// fromSpool delivers the spool from r's position on, and moves r to its end.
func (o *Source) fromSpool(ctx context.Context, r *reader) error {
	s := o.opt.Spool.handOver()
	if !spooled(s, r.from) {
		return nil
	}
	rd := s.From(spoolKey(r.from))
	defer rd.Close()
	o.log.Info("reading the spool", "from", r.from, "until", spoolEnd(s))
	for drained := false; ; {
		rec, ok, err := rd.Next()
		switch {
		case err != nil:
			err = o.opt.Spool.abandon(err)
		case ok:
			err = r.record(ctx, rec)
		case drained:
			o.log.Info("the spool is read; going on with the oplog", "position", r.from)
			return nil
		default:
			drained = true
			o.opt.Spool.stop()
		}
		if err != nil {
			return err
		}
	}
}

// record delivers a record without the entries before r's position.
func (r *reader) record(ctx context.Context, rec spool.Record) error {
	if _, err := r.sink.waitRoom(ctx, 0); err != nil {
		return err
	}
	c := chunk{batch: wire.BatchOf(rec.Payload)}
	if !r.started {
		if err := r.startIn(&c); err != nil {
			return err
		}
		r.started = true
	}
	r.from, r.skip = atKey(rec.Last), 1
	return r.sink.put(c)
}

// startIn skips the first record's entries before r's position, and the one there if it was delivered. The record must
// have the entry at an exact position.
func (r *reader) startIn(c *chunk) error {
	var first mongo.OpTime
	err := c.batch.Each(func(doc []byte) error {
		e, err := parseEntry(doc)
		if err != nil || !first.IsZero() {
			return err
		}
		if e.at.Before(r.from) {
			c.skip++
		} else {
			first = e.at
		}
		return nil
	})
	if err == nil && exact(r.from) && !same(first, r.from) {
		err = rolledBack("the entry", r.from, first)
	}
	c.skip += r.skip
	return err
}

// fromSpool finds an entry in the spool if that covers its position.
func (f *fetcher) fromSpool(at mongo.OpTime) (found entry, ok bool, err error) {
	s := f.spool.spool()
	if !spooled(s, at) {
		return found, false, nil
	}
	if key := spoolKey(at); f.record.Payload == nil || key < f.record.First || f.record.Last < key {
		rd := s.From(key)
		defer rd.Close()
		if f.record, ok, err = rd.Next(); err != nil {
			return found, false, f.spool.abandon(err)
		}
		if !ok {
			return found, false, nil
		}
		ok = false
	}
	err = wire.BatchOf(f.record.Payload).Each(func(doc []byte) error {
		e, err := parseEntry(doc)
		if err == nil && same(e.at, at) {
			found, ok = e, true
		}
		return err
	})
	if err == nil && !ok {
		err = fmt.Errorf("%w: the spool has no entry %s", errMalformed, at)
	}
	return found, ok, err
}
