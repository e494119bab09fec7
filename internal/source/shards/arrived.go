package shards

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/stream"
)

// arrived gives the events that make documents what they are when their chunk has come.
func (j *judge) arrived(ctx context.Context, all []*stray, key shardkey.Pattern, at bson.Timestamp) ([]stream.Event, error) {
	p := &replay{docs: map[string]*states{}, key: key, of: all[0].with}
	for _, s := range all {
		p.docs[s.id.String()] = &states{}
	}
	filter := append(written(all), bson.E{Key: "ts", Value: bson.D{{Key: "$gte", Value: all[0].with.since}, {Key: "$lte", Value: at}}})
	if err := j.look(ctx, filter, at, p.entry); err != nil {
		return nil, err
	}
	if err := j.deletedFirst(ctx, all, p, at); err != nil {
		return nil, err
	}
	if err := j.readAgain(ctx, all, p, at); err != nil {
		return nil, err
	}
	var events []stream.Event
	for _, s := range all {
		d := p.docs[s.id.String()]
		ev := stream.Event{Kind: stream.Replace, NS: s.ns, UUID: &s.uuid, Doc: d.is, At: mongo.OpTime{TS: at, Term: -1},
			Key: stream.Key{ID: bsonraw.FromRaw(s.id), Shard: s.key}}
		switch {
		case d.is == nil && d.told == nil:
			continue
		case d.is == nil:
			ev.Kind = stream.Delete
		case d.told == nil || s.lost:
			ev.Kind = stream.Put
		}
		events = append(events, ev)
	}
	return events, nil
}

// written is a condition on entries that tell of documents, except within transactions.
func written(all []*stray) bson.D {
	var ids bson.A
	for _, s := range all {
		ids = append(ids, s.id)
	}
	in := bson.D{{Key: "$in", Value: ids}}
	return bson.D{
		{Key: "ui", Value: bson.Binary{Subtype: 4, Data: all[0].uuid[:]}},
		{Key: "$or", Value: bson.A{bson.D{{Key: "o._id", Value: in}}, bson.D{{Key: "o2._id", Value: in}}}},
	}
}

// states are what a document of a chunk on its way is by the donor's word, and what it
// is on the recipient.
type states struct {
	told, is bson.Raw
	// known: the oplog tells what it is. Where it does not, the document was there when
	// the chunk's way began, as an orphan.
	known bool
}

// replay finds out what documents of a chunk on its way are.
type replay struct {
	docs map[string]*states // by _id
	key  shardkey.Pattern
	of   *arrival
	at   shardkey.Key // to be filled in
}

// entry takes an entry of the recipient's oplog on one of the documents. Of one _id it
// has but one document at a time: that of the chunk, or one with another shard key.
//
// What it knows of the chunk before the donor's documents come are orphans of an
// earlier stay. They go before, or the donor's do not come.
func (p *replay) entry(e bson.Raw) error {
	op, _ := e.Lookup("op").StringValueOK()
	o, _ := e.Lookup("o").DocumentOK()
	o2, _ := e.Lookup("o2").DocumentOK()
	id := o.Lookup("_id")
	if op == "u" {
		id = o2.Lookup("_id")
	}
	d := p.docs[id.String()]
	if d == nil {
		return nil
	}
	switch {
	case op == "d", op == "u" && p.elsewhere(o2), op == "i" && !p.has(o):
		d.is, d.known = nil, true
	case op == "i", op == "u" && whole(o):
		d.is, d.known = o, true
	case op == "u" && d.is == nil:
		d.known = false
	case op == "u":
		var err error
		if d.is, err = updated(d.is, o); err != nil {
			return fmt.Errorf("replay of %s: %w", id, err)
		}
	}
	if donors, _ := e.Lookup("fromMigrate").BooleanOK(); donors {
		d.told = d.is
	}
	return nil
}

// elsewhere reports a document key that is not one of the chunk. One of the _id alone
// may be.
func (p *replay) elsewhere(key bson.Raw) bool {
	named := slices.ContainsFunc(p.key, func(f shardkey.Field) bool {
		_, ok := bsonraw.Field(key, f.Path)
		return ok
	})
	return named && p.key.OfDocumentKey(&p.at, key) && !p.of.has(p.at.Values)
}

// has reports a document of the chunk.
func (p *replay) has(doc bson.Raw) bool {
	return p.key.Of(&p.at, doc) && p.of.has(p.at.Values)
}

// updated is a document after an update.
func updated(doc, o bson.Raw) (bson.Raw, error) {
	change, err := delta.ParseAs(delta.KindOf(o), o)
	if err != nil {
		return nil, err
	}
	out, _, err := delta.Apply(nil, doc, change)
	return out, err
}

// readAgain asks the router for the documents of which the oplog does not tell what
// they are: orphans that nobody knew of and that came to count with the chunk. What is
// read may be newer, and the changes since then apply to it.
func (j *judge) readAgain(ctx context.Context, all []*stray, p *replay, at bson.Timestamp) error {
	var ids []bson.RawValue
	for _, s := range all {
		if !p.docs[s.id.String()].known {
			ids = append(ids, s.id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	db, name := mongo.SplitNS(p.of.ns)
	docs, err := lookup.Find(ctx, j.router, lookup.Collection{DB: db, Name: name}, lookup.Question{IDs: ids, At: mongo.OpTime{TS: at, Term: -1}})
	if err != nil {
		return fmt.Errorf("read documents again: %w", err)
	}
	for i, doc := range docs {
		if doc != nil && p.has(doc) {
			d := p.docs[ids[i].String()]
			d.told, d.is = nil, doc
		}
	}
	return nil
}
