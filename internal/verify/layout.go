package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/source/shards"
)

// layout reads a side in the order of its storage. Each scan gives every document that is there all
// the time.
type layout interface {
	scan(ctx context.Context, readers int, begin func() reading) error
}

func (s *side) layout(ctx context.Context, readers int) (layout, error) {
	if of := s.e.shards[s.i].Load(); of != nil && s.exists {
		l, err := s.onShards(ctx, of, readers)
		return l, s.e.unread(s.i, err)
	}
	parts, err := s.slices(ctx, min(readers, s.readers()))
	return &slicing{side: s, parts: parts}, err
}

type slicing struct {
	*side
	parts []scan.Slice
}

func (l *slicing) scan(ctx context.Context, readers int, begin func() reading) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for _, sl := range l.parts {
		g.Go(func() error { return l.scanSlice(ctx, sl, begin()) })
	}
	return g.Wait()
}

func (s *side) onShards(ctx context.Context, of *origin.Sharded, readers int) (layout, error) {
	now, err := s.e.describe(ctx, s.i, s.NS)
	now.chosen, now.mapped = s.chosen, s.mapped
	if err != nil || !now.exists {
		return &slicing{side: &now, parts: []scan.Slice{{Strategy: scan.Serial}}}, err
	}
	table, err := of.Table(ctx, now.uuid)
	switch {
	case mongo.IsCode(err, mongo.CodeNamespaceNotFound):
		return now.onOneShard(ctx, of, readers)
	case err != nil:
		return nil, err
	}
	l := &owned{side: now, of: of, readers: readers, cuts: map[string][]scan.Slice{}}
	return l, l.cut(ctx, table)
}

// shard is what one shard has of the side, or owns of it, with the estimates of an even share. It
// is read by UUID: what movePrimary has dropped is not taken for an empty collection.
func (s *side) shard(on *shards.Shard, owned *ownership.Filter, of int) *side {
	one := *s
	one.on, one.owned, one.UUID = on, owned, s.uuid
	one.Bytes, one.Count = s.Bytes/int64(of), s.Count/int64(of)
	return &one
}

// onOneShard is the layout of an unsharded collection, which is on its database's shard.
func (s *side) onOneShard(ctx context.Context, of *origin.Sharded, readers int) (layout, error) {
	db, _ := mongo.SplitNS(s.NS)
	primary, err := ownership.Primary(ctx, s.e.clusters[s.i], db, ownership.Majority())
	if err != nil {
		return nil, fmt.Errorf("find the shard of database %s: %w", db, err)
	}
	if primary == "" {
		return nil, mongo.Retry("database "+db+" has been dropped", nil, "")
	}
	on, err := shardNamed(of, primary)
	if err != nil {
		return nil, err
	}
	l := &unsharded{slicing{side: s.shard(on, nil, 1)}, of}
	l.parts, err = l.slices(ctx, min(readers, l.readers()))
	return l, l.gone(err)
}

func shardNamed(of *origin.Sharded, name string) (*shards.Shard, error) {
	i := slices.IndexFunc(of.Cluster().Shards, func(s shards.Shard) bool { return s.Name == name })
	if i < 0 {
		return nil, errUnread{fmt.Errorf("shard %s has joined meanwhile", name)}
	}
	return &of.Cluster().Shards[i], nil
}

type unsharded struct {
	slicing
	of *origin.Sharded
}

// scan checks after reading that the collection is not sharded now: chunks may have left before
// they were read. If its database moves, the copy read here is complete until it is dropped, which
// is an error.
func (l *unsharded) scan(ctx context.Context, readers int, begin func() reading) error {
	if err := l.slicing.scan(ctx, readers, begin); err != nil {
		return l.e.unread(l.i, l.gone(err))
	}
	now, err := l.e.describe(ctx, l.i, l.NS)
	if err != nil {
		return err
	}
	_, err = l.of.Table(ctx, l.uuid)
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) && now.exists {
		return nil
	}
	if err == nil || mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		err = mongo.Retry(l.NS+" was sharded or dropped while it was read", nil, "")
	}
	return err
}

// gone makes err one that is retried if the collection has left its shard.
func (l *unsharded) gone(err error) error {
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		return mongo.Retry(l.NS+" is not on shard "+l.on.Name+" any more", err, "")
	}
	return err
}

func (s *side) byRecord() bool {
	return s.exists && scan.ByStorage(&s.Collection, s.cluster().Info) == scan.ByRecord
}

// cuttable returns the strategy of scans that begin in the middle; "" for none. Routers cannot begin
// in the middle of storage order, or go on there after a cursor is lost.
func (s *side) cuttable() scan.Strategy {
	switch {
	case s.byRecord():
		return scan.ByRecord
	case s.exists && s.routed() && s.order == scan.ByID:
		return scan.ByID
	}
	return ""
}

// readers is one where no scan begins in the middle.
func (s *side) readers() int {
	if s.cuttable() == "" {
		return 1
	}
	return s.e.readersOf(s.Bytes)
}

func (e *Engine) readersOf(bytes int64) int {
	return int(max(min(bytes/e.o.RangeBytes, int64(e.o.Workers)), 1))
}

// slicesPerReader keeps all readers busy to the end. A slice costs half a reply.
const slicesPerReader = 4

func (s *side) slices(ctx context.Context, readers int) ([]scan.Slice, error) {
	if readers < 2 {
		return []scan.Slice{s.entire()}, nil
	}
	n := readers * slicesPerReader
	if s.e.assigner != nil { // so that others find some
		const most = 1024
		n = max(n, int(min(s.Bytes/(4*s.e.o.RangeBytes), most)))
	}
	return s.cut(ctx, n)
}

func (s *side) entire() scan.Slice {
	return scan.Slice{Strategy: cmp.Or(s.cuttable(), scan.Serial)}
}

// cut splits a side into at most n slices, all read from the member that gave the bounds: record
// ids are its own. If a document at a bound was deleted, two slices may give the same documents.
// Then their groups differ, and their documents are compared.
func (s *side) cut(ctx context.Context, n int) ([]scan.Slice, error) {
	parts := []scan.Slice{s.entire()}
	by := s.cuttable()
	if n < 2 || by == "" {
		return parts, nil
	}
	err := s.read(ctx, scan.Member{}, func(r *scan.Reader) (err error) {
		like := scan.Slice{Strategy: by}
		if by == scan.ByRecord {
			if like.Member, err = scan.MemberOf(ctx, r.Conn); err != nil {
				return err
			}
		}
		bounds, served, err := r.Cut(ctx, &s.Collection, by, n)
		if err != nil {
			return err
		}
		parts = []scan.Slice{{Strategy: scan.Serial}}
		if served == by {
			parts = scan.Slices(like, bounds)
		}
		return nil
	})
	return parts, err
}

type reading struct {
	idsOnly bool
	each    func(doc, key []byte) error // what it gets is valid during the call
	end     func()                      // of each reply; nil is nothing
}

func (s *side) scanSlice(ctx context.Context, sl scan.Slice, do reading) error {
	return s.walk(ctx, sl, s.want(s.e.limits.scan, do.idsOnly), s.scanned(do))
}

func (s *side) scanned(do reading) func(p *scan.Part) error {
	var key []byte
	return func(p *scan.Part) error {
		s.e.c.account(p.Size)
		err := p.Each(func(doc []byte) error {
			var ok bool
			if key, ok = appendID(key[:0], doc); !ok {
				return errMalformed(s.NS)
			}
			return do.each(doc, key)
		})
		s.e.c.account(-p.Size)
		if do.end != nil {
			do.end()
		}
		return err
	}
}
