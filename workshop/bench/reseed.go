package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

// SeedSet is a replica set that the scenario seed measures: a member is stopped, loses its data, and gets them again.
type SeedSet struct {
	Documents     int // Documents of all collections together.
	DocumentBytes int // DocumentBytes is the size of a document, of which about a third stays on disk.
	Collections   int // Collections of the set, each with Indexes secondary indexes.
	Indexes       int
}

func (s SeedSet) dataset() dataset {
	return dataset{thirdRandom(s.DocumentBytes), s.Documents, s.Collections}
}

// reseedCacheGB is the least cache of a server: most data are on the disk, as in the published sets.
const reseedCacheGB = 0.25

// reseed measures sets one after the other on the same servers. A set with the documents of the one before only gets
// its further indexes.
func (b *bench) reseed(ctx context.Context, s scenario) (err error) {
	sets := b.o.Seeds
	largest := slices.MaxFunc(sets, func(x, y SeedSet) int { return x.dataset().bytes() - y.dataset().bytes() })
	w := &seedWork{bench: b, data: largest.dataset(), cacheGB: reseedCacheGB, replaces: true}
	w.site = &site{source: &side{}, target: &side{}}
	b.say("%s: starting servers", s.name)
	defer func() { err = errors.Join(err, w.dismiss(context.WithoutCancel(ctx)), w.site.close()) }()
	if err := w.source.open(ctx, false, lab.Options{Version: b.o.Servers.Version, Topology: "rs:2", CacheGB: w.cacheGB,
		OplogMB: seedOplogMB(w.data), LeanJournal: true, Logger: b.o.Log}); err != nil {
		return err
	}
	if _, err := w.announce(ctx); err != nil {
		return err
	}
	if err := w.add(ctx, w.new.host); err != nil {
		return err
	}
	was := SeedSet{}
	for _, set := range sets {
		if err := w.become(ctx, was, set); err != nil {
			return err
		}
		was = set
		c := Case{
			Scenario: s.name, Variant: seedCase{set.Collections, set.Indexes}.String(), Ceiling: "none", Unit: "documents",
			Count: w.data.docs, Bytes: w.data.bytes(), Collections: set.Collections, Indexes: set.Indexes,
			Work: "a member that has lost its data, of a set that holds " + w.data.describe() + ", " + itoa(set.Indexes) +
				" secondary indexes on random 32-bit integers in each, " + lightText + ", until it is SECONDARY and has applied " +
				"what the primary had then; disks of " + itoa(b.o.SeedDisk.PerSecond) + " operations a second",
		}
		if c.DataBytes, c.DiskBytes, err = w.stored(ctx); err != nil {
			return err
		}
		stop := startLight(ctx, w.source, w.data)
		err := b.compete(ctx, w.site, c, []contender{w.logical(), w.twoPasses()})
		if err := errors.Join(err, stop(), w.stop(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// become makes the members hold a set, with disks at their full speed meanwhile.
func (w *seedWork) become(ctx context.Context, was, set SeedSet) error {
	w.data, w.indexes = set.dataset(), fieldIndexes(set.Indexes)
	w.say("seed: making %s with %d indexes in each", w.data.describe(), set.Indexes)
	w.source.lab.SlowDisks(lab.DiskSpeed{})
	had := was.Indexes
	was.Indexes = set.Indexes
	if was == set && had <= set.Indexes {
		defer w.source.lab.SlowDisks(w.o.SeedDisk)
		for c := range set.Collections {
			if err := w.source.index(ctx, c, w.indexes[had:]); err != nil {
				return err
			}
		}
		return w.source.settle(ctx)
	}
	if err := w.source.load(ctx, w.data, w.indexes); err != nil {
		return err
	}
	if err := w.chooseMember(ctx); err != nil {
		return err
	}
	if err := w.shrinkOplog(ctx); err != nil {
		return err
	}
	w.source.lab.SlowDisks(w.o.SeedDisk) // before the restart, from which on members have such disks
	if err := w.source.restart(ctx); err != nil {
		return err
	}
	return w.chooseMember(ctx)
}

// stop ends the member after a checkpoint, and waits until the set sees that it is down.
func (w *seedWork) stop(ctx context.Context) error {
	n := w.new
	if n.pid == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("%s was not stopped in a minute", n.host))
	defer cancel()
	c, err := connectWhenUp(ctx, n.uri())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := (&side{nodes: []*mongo.Cluster{c}}).settle(ctx); err != nil {
		return err
	}
	if err := n.end(ctx); err != nil {
		return err
	}
	return await(ctx, 20*time.Millisecond, func() (bool, error) {
		st, err := mongo.ReadSetStatus(ctx, w.source.direct.Client)
		if err != nil {
			return false, fmt.Errorf("wait until %s is down: %w", n.host, err)
		}
		return st.Member(n.host).Health == 0, nil
	})
}
