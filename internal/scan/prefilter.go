package scan

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/wire"
)

// Prefilter lets the server leave documents out, if they are read in record order and that pays.
// Want.Keep still decides about those that come.
type Prefilter struct {
	// Filter finds every document that Want.Keep chooses.
	Filter bson.Raw
	// Match reports whether the server finds a document. It is safe for concurrent use.
	Match func(doc []byte) bool
}

// prefiltering is a walk's use of a Prefilter. It requests the documents of the filter, some at
// random, and the one at which the slice ends. With the random ones a reply and its resume token
// never wait for a distant document.
type prefiltering struct {
	Prefilter
	on      bool    // the filter is sent; else all documents come, and are counted
	tried   bool    // a reply has come
	rate    float64 // share of the random ones
	span    float64 // documents that the server is to look at for a reply
	most    float64 // documents in a reply
	density float64 // documents that come for each record id that is passed
}

const (
	trialDocs = 256
	leastRate = 0.005
)

func (s *prefiltering) filter(upper bson.Raw) bson.D {
	of := bson.A{s.Filter, bson.D{{Key: "$sampleRate", Value: s.rate}}}
	if len(upper) > 0 {
		of = append(of, bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: upper.Lookup("_id")}}}})
	}
	return bson.D{{Key: "$or", Value: of}}
}

// wanted returns how many documents to request, of at most batch. A find has no end at a record id:
// it should just reach it. left is the number of record ids left, 0 for no end.
func (s *prefiltering) wanted(batch int, left int64) int {
	switch {
	case !s.tried:
		return min(batch, trialDocs)
	case !s.on:
		return batch
	}
	n := min(s.span*s.density, s.most)
	if left > 0 {
		n = min(n, float64(left)*s.density+1)
	}
	return max(int(n), 1)
}

// pays counts documents that came without the filter. It turns the filter on if that finds less
// than half of them.
func (s *prefiltering) pays(p *Part) bool {
	s.tried = true
	if s.on || p.Docs == 0 || p.Last {
		return false
	}
	seen, found := 0, 0
	_ = p.batch.Each(func(doc []byte) error {
		if seen == trialDocs {
			return errEnough
		}
		seen++
		if s.Match(doc) {
			found++
		}
		return nil
	})
	if s.on = 2*found < seen; s.on {
		s.density = min(float64(found)/float64(seen)+s.rate, 1)
	}
	return s.on
}

func (s *prefiltering) passed(b *wire.Batch, ids int64) {
	docs := 0
	_ = b.Each(func([]byte) error { docs++; return nil })
	if docs > 0 && ids > 0 {
		s.density = (s.density + min(float64(docs)/float64(ids), 1)) / 2
	}
}

// unread estimates how many documents the server left out before one that came: a known share of
// those that the filter does not find comes. The document with the _id until came for its _id.
func (s *prefiltering) unread(p *Progress, doc []byte, until bsoncore.Value) {
	if s.Match(doc) || until.Type != 0 && bsonraw.IDOf(doc).Equal(until) {
		return
	}
	others := 1/s.rate - 1
	p.Unread += int64(others)
	p.UnreadBytes += int64(others * float64(len(doc)))
}
