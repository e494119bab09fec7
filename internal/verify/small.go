package verify

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// Where there are thousands of small collections, commands cost more than documents. So collections are
// described many at a time, and each side is read without asking for its size first. What does not fit
// into one reply is planned by its size.

const (
	describedAtOnce = 64  // the most
	smallDocs       = 100 // asked for in the reply that may be all
)

var errLarge = errors.New("one reply does not hold the collection")

// together is how many collections are described at a time, such that all workers have some.
func (e *Engine) together(collections int) int {
	return min(max(collections/(4*e.o.Workers), 1), describedAtOnce)
}

// describeAll describes collections, with one listing of each database. It leaves to tasks what it does not
// find, and what routers know.
func (e *Engine) describeAll(ctx context.Context, cols []*collection) error {
	if e.o.Method != Auto || e.o.sampled() || e.o.Documents != nil {
		return nil
	}
	return both(ctx, func(ctx context.Context, i int) error {
		if e.clusters[i].Info.Kind == mongo.KindSharded {
			return nil
		}
		byDB := map[string][]*collection{}
		for _, c := range cols {
			db, _ := mongo.SplitNS(c.pair.name(i))
			byDB[db] = append(byDB[db], c)
		}
		for db, cols := range byDB {
			if err := e.describeIn(ctx, i, db, cols); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *Engine) describeIn(ctx context.Context, i int, db string, cols []*collection) error {
	var names bson.A
	byName := map[string]*collection{}
	for _, c := range cols {
		_, name := mongo.SplitNS(c.pair.name(i))
		names = append(names, name)
		byName[name] = c
	}
	return again(ctx, e.o.Log, "describe collections of "+db, func() error {
		infos, err := e.listed(ctx, i, db, bson.D{{Key: "$in", Value: names}})
		for _, info := range infos {
			name, _ := info.Lookup("name").StringValueOK()
			s := e.newSide(i, db+"."+name)
			// tasks reports what is no collection.
			if c := byName[name]; c != nil && s.takes(info) == nil {
				s.unsized = true
				c.sides[i] = s
			}
		}
		return err
	})
}

// small compares collections that one reply holds, and returns errLarge for others.
func (c *collection) small(ctx context.Context) error {
	if err := c.compare(ctx, request{once: true}); err != nil {
		return err
	}
	c.e.c.estDocs.Add(c.docs[source].Load() + c.docs[target].Load())
	return nil
}

// unsized reports that the collection may be small. The order of capped ones takes their sizes.
func (c *collection) unsized() bool {
	unknown := slices.ContainsFunc(c.sides[:], func(s side) bool { return s.unsized })
	return unknown && !c.pair.History && !c.sides[source].Capped()
}
