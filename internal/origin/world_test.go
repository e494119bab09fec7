package origin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

const (
	shardCount = 3
	dbCount    = 2
	perDB      = 3
	nameCount  = dbCount * perDB
	viewID     = 0xffff
)

func dbName(db int) string { return string(rune('a' + db)) }

func nsOf(n int) string { return [nameCount]string{"a.x", "a.y", "a.z", "b.x", "b.y", "b.z"}[n] }

func idNumber(n uint16) [16]byte { return [16]byte{0: byte(n), 1: byte(n >> 8)} }

func numberOf(uuid bson.Binary) uint16 {
	if len(uuid.Data) < 2 {
		return 0
	}
	return uint16(uuid.Data[0]) | uint16(uuid.Data[1])<<8
}

// logical is a collection, or view, as users see it wherever its database moves.
type logical struct {
	id, alt       uint16 // alt: by which users know it as well as by id; 0 for none
	view, sharded bool
	props         props
	altMade       int  // the tick at which movePrimary has made alt; 0: users have
	copied        bool // by movePrimary: servers mark what other shards make of it later
	busy          int  // commands that change props
}

// props are what commands change of a collection.
type props struct {
	indexes uint8 // one bit each
	mod     uint8
}

// tick is the state of the cluster after a step.
type tick struct {
	at      mongo.OpTime
	change  *stream.Change // nil: nothing is reported
	by      int            // command
	listing [nameCount]uint16
	left    [nameCount]bool    // a move that came to nothing has left a copy
	users   [nameCount]logical // as they were then, id 0: none
	flux    [nameCount]int     // a command is about to end who has the name
}

// command is one under way. Each step is on one shard, at a time of its own.
type command struct {
	number int
	since  int // the first tick
	what   string
	steps  []func() *stream.Change
	ended  func()
}

// world is a sharded cluster with its users, and movePrimary. Commands run side by side, except on one name, or in a
// database that moves or is dropped. The shards' events are as servers from 6.0 on were seen to report them.
//
// Left out is what these servers refuse (a rename of what has a copy elsewhere), and what nobody can tell (see hides).
type world struct {
	*rand.Rand
	tidy    bool // movePrimary leaves nothing behind
	parts   [shardCount][nameCount]uint16
	primary [dbCount]int
	users   [nameCount]*logical
	of      []*logical // by UUID; nil: a copy that was given up
	flux    [nameCount]int

	made     map[uint16]int // ticks, of copies
	running  []*command
	commands int
	held     [nameCount]bool
	moving   [dbCount]bool // exclusively held
	settled  [dbCount]bool // moving, committed
	ticks    []tick
	verbose  bool
	story    []string
}

func newWorld(r *rand.Rand, steps int, verbose bool) *world {
	w := &world{Rand: r, made: map[uint16]int{}, of: []*logical{nil}, tidy: r.IntN(2) == 0, verbose: verbose}
	for db := range w.primary {
		w.primary[db] = r.IntN(shardCount)
	}
	w.record(nil, &command{})
	for len(w.ticks) < steps || len(w.running) > 0 {
		if len(w.ticks) < steps && (len(w.running) == 0 || len(w.running) < 3 && w.IntN(3) == 0) {
			w.begin()
			continue
		}
		i := w.IntN(len(w.running))
		c := w.running[i]
		step := c.steps[0]
		c.steps = c.steps[1:]
		ch := step()
		if len(c.steps) == 0 {
			w.running = slices.Delete(w.running, i, i+1)
			c.ended()
		}
		w.record(ch, c)
	}
	return w
}

func (w *world) record(ch *stream.Change, c *command) {
	t := tick{at: at(100, 1), change: ch, by: c.number, flux: w.flux}
	if n := len(w.ticks); n > 0 {
		last := &w.ticks[n-1]
		t.at = last.at
		// shards may report at one time what commands do that neither wait for the other
		if ch == nil || last.change == nil || last.by == c.number || c.since >= n-1 || w.IntN(3) > 0 {
			t.at.TS.I++
		}
	}
	for n := range nameCount {
		t.listing[n], t.left[n] = w.parts[w.primary[n/perDB]][n], w.left(n)
		if l := w.users[n]; l != nil {
			t.users[n] = *l
		}
	}
	w.ticks = append(w.ticks, t)
	if !w.verbose {
		return
	}
	what := "."
	if ch != nil {
		what = describe(ch)
	}
	w.story = append(w.story, fmt.Sprintf("%3d %s [%d %s] %s", len(w.ticks)-1, t.at, c.number, c.what, what))
}

func describe(ch *stream.Change) string {
	s := fmt.Sprintf("%s %s %d", ch.Kind, ch.NS, numberOf(ch.UUID))
	if ch.To != "" {
		s += fmt.Sprintf(" to %s, replaces %d", ch.To, numberOf(ch.Replaced))
	}
	for _, ix := range ch.Indexes {
		s += " " + ix.Name
	}
	return s
}

func (w *world) newID(l *logical) uint16 {
	w.of = append(w.of, l)
	return uint16(len(w.of) - 1)
}

func change(kind stream.ChangeKind, n int, id uint16) *stream.Change {
	ch := &stream.Change{Kind: kind, NS: nsOf(n)}
	if id != 0 {
		ch.UUID = binaryOf(idNumber(id))
	}
	return ch
}

// left reports copies, or originals, that movePrimary has left on other shards.
func (w *world) left(n int) bool {
	for s := range w.parts {
		if id := w.parts[s][n]; id != 0 && (w.users[n] == nil || id != w.users[n].id) {
			return true
		}
	}
	return false
}

// begin begins a command, if what is drawn is possible.
func (w *world) begin() {
	n := w.IntN(nameCount)
	db := n / perDB
	l := w.users[n]
	kind := w.IntN(20)
	soft := w.settled[db] && l != nil && !l.view && kind >= 10 && kind < 16
	if w.held[n] || w.moving[db] && !soft {
		return
	}
	w.commands++
	c := &command{number: w.commands, since: len(w.ticks), ended: func() { w.held[n] = false }}
	switch {
	case l == nil && kind < 12:
		c.what = "create"
		c.steps = w.create(n, w.IntN(3) == 0)
	case l == nil && kind == 12:
		c.what = "view"
		c.steps = append(c.steps, func() *stream.Change {
			w.users[n] = &logical{id: viewID, view: true}
			w.parts[w.primary[db]][n] = viewID
			return change(stream.ChangeView, n, 0)
		})
	case l != nil && kind < 4:
		c.what = "drop"
		c.steps = w.drop(n)
	case l != nil && !l.view && kind < 7:
		m := db*perDB + w.IntN(perDB)
		if m == n || w.held[m] || w.left(n) || w.left(m) || w.users[m] != nil && w.users[m].view {
			return
		}
		w.held[m] = true
		c.what = "rename"
		c.steps = w.rename(n, m)
		c.ended = func() {
			w.users[m], w.users[n], w.held[n], w.held[m] = l, nil, false, false
			w.flux[n]--
			w.flux[m]--
		}
	case l != nil && !l.view && kind < 8:
		if w.left(n) {
			return
		}
		c.what = "shard"
		l.sharded = true
		c.steps = w.spread(n)
	case l != nil && kind >= 8 && kind < 10 && w.left(n):
		c.what = "clean"
		for s := range w.parts {
			if s != w.primary[db] && w.parts[s][n] != l.id {
				c.steps = append(c.steps, w.dropPart(n, s)...)
			}
		}
	case l != nil && !l.view && kind >= 10 && kind < 16:
		c.what = "modify"
		c.steps = w.modify(n, l)
		ended := c.ended
		c.ended = func() { ended(); l.busy-- }
	case kind >= 16:
		if slices.Contains(w.held[db*perDB:(db+1)*perDB], true) {
			return
		}
		c.ended = func() { w.moving[db], w.settled[db] = false, false }
		if kind == 16 && w.IntN(2) == 0 {
			c.what = "dropDatabase"
			c.steps = w.dropDatabase(db)
		} else {
			c.what = "movePrimary"
			c.steps = w.movePrimary(db)
		}
		if len(c.steps) > 0 {
			w.moving[db], w.running = true, append(w.running, c)
		}
		return
	}
	if len(c.steps) > 0 {
		w.held[n], w.running = true, append(w.running, c)
	}
}

func (w *world) create(n int, sharded bool) (steps []func() *stream.Change) {
	db := n / perDB
	l := &logical{sharded: sharded}
	l.id = w.newID(l)
	steps = append(steps, func() *stream.Change {
		w.users[n], w.parts[w.primary[db]][n] = l, l.id
		return change(stream.ChangeCreate, n, l.id)
	})
	if sharded {
		for s := range w.parts {
			if s != w.primary[db] && w.IntN(2) == 0 {
				steps = append(steps, w.addPart(n, s))
			}
		}
	}
	return steps
}

// addPart has another shard make a collection of the same UUID.
func (w *world) addPart(n, s int) func() *stream.Change {
	return func() *stream.Change {
		l := w.users[n]
		w.parts[s][n] = l.id
		if l.copied {
			return nil
		}
		return change(stream.ChangeCreate, n, l.id)
	}
}

func (w *world) spread(n int) (steps []func() *stream.Change) {
	for s := range w.parts {
		if w.parts[s][n] == 0 && w.IntN(2) == 0 {
			steps = append(steps, w.addPart(n, s))
		}
	}
	return steps
}

func (w *world) dropPart(n, s int) (steps []func() *stream.Change) {
	if w.parts[s][n] == 0 {
		return nil
	}
	return append(steps, func() *stream.Change {
		id := w.parts[s][n]
		w.parts[s][n] = 0
		if l := w.users[n]; l != nil && l.alt == id {
			l.alt = 0
		}
		return change(stream.ChangeDrop, n, id)
	})
}

// drop drops a collection, and what movePrimary has left, on all shards, the primary last.
func (w *world) drop(n int) (steps []func() *stream.Change) {
	l, primary := w.users[n], w.primary[n/perDB]
	if l.view {
		return append(steps, func() *stream.Change {
			w.users[n], w.parts[primary][n] = nil, 0
			return change(stream.ChangeDropView, n, 0)
		})
	}
	for s := range w.parts {
		if s == primary {
			continue
		}
		for _, drop := range w.dropPart(n, s) {
			steps = append(steps, func() *stream.Change {
				if w.parts[s][n] == l.id && w.flux[n] == 0 {
					w.flux[n] = 1
				}
				return drop()
			})
		}
	}
	last := w.dropPart(n, primary)[0]
	return append(steps, func() *stream.Change {
		w.users[n], w.flux[n] = nil, 0
		return last()
	})
}

func (w *world) rename(n, m int) (steps []func() *stream.Change) {
	l, other := w.users[n], w.users[m]
	began := false
	for _, s := range w.Perm(shardCount) {
		if w.parts[s][n] == 0 && w.parts[s][m] == 0 {
			continue
		}
		steps = append(steps, func() *stream.Change {
			if !began {
				began = true
				w.flux[n]++
				w.flux[m]++
			}
			if w.parts[s][n] == 0 {
				return w.dropPart(m, s)[0]()
			}
			ch := change(stream.ChangeRename, n, l.id)
			ch.To = nsOf(m)
			if ch.DropTarget = w.parts[s][m] != 0; ch.DropTarget {
				ch.Replaced = binaryOf(idNumber(other.id))
			}
			w.parts[s][n], w.parts[s][m] = 0, l.id
			return ch
		})
	}
	return steps
}

// modify changes indexes, or the collection, on each shard that has it.
func (w *world) modify(n int, l *logical) (steps []func() *stream.Change) {
	ch := change(stream.ChangeCollMod, n, 0)
	after := l.props
	bit := w.IntN(3)
	switch {
	case w.IntN(3) == 0:
		after.mod = uint8(1 + w.IntN(3))
		ch.Options = modOf(after.mod)
	case l.props.indexes&(1<<bit) == 0:
		after.indexes |= 1 << bit
		ch.Kind, ch.Indexes = stream.ChangeCreateIndexes, indexesOf(1<<bit)
	default:
		after.indexes &^= 1 << bit
		ch.Kind, ch.Indexes = stream.ChangeDropIndexes, []stream.Index{{Name: string(rune('0' + bit))}}
	}
	for _, s := range w.Perm(shardCount) {
		if w.parts[s][n] == l.id {
			steps = append(steps, func() *stream.Change {
				if s == w.primary[n/perDB] {
					l.props = after
				}
				one := *ch
				one.UUID = binaryOf(idNumber(l.id))
				return &one
			})
		}
	}
	l.busy++
	return steps
}

func modOf(n uint8) bson.Raw { return kit.Raw(kit.D("n", int32(n))) }

func indexesOf(bits uint8) (all []stream.Index) {
	for bit := range 3 {
		if bits&(1<<bit) != 0 {
			name := string(rune('0' + bit))
			all = append(all, stream.Index{Name: name, Spec: kit.Raw(kit.D("name", name))})
		}
	}
	return all
}

func (w *world) dropDatabase(db int) (steps []func() *stream.Change) {
	for n := db * perDB; n < (db+1)*perDB; n++ {
		if l := w.users[n]; l != nil && !l.view {
			steps = append(steps, w.drop(n)...)
		}
	}
	began := false
	for range shardCount {
		steps = append(steps, func() *stream.Change {
			for n := db * perDB; n < (db+1)*perDB && !began; n++ { // views
				w.users[n], w.parts[w.primary[db]][n] = nil, 0
			}
			began = true
			return &stream.Change{Kind: stream.ChangeDropDatabase, NS: dbName(db)}
		})
	}
	return steps
}

// movePrimary makes copies on another shard, commits, and drops the originals. It may be given up before it commits,
// or leave things behind.
func (w *world) movePrimary(db int) (steps []func() *stream.Change) {
	for n := db * perDB; n < (db+1)*perDB; n++ {
		if l := w.users[n]; l != nil && l.alt != 0 { // what a move has left
			return nil
		}
	}
	from := w.primary[db]
	to := (from + 1 + w.IntN(shardCount-1)) % shardCount
	copies := map[int]uint16{}
	var last []func() *stream.Change
	gaveUp := w.IntN(4) == 0
	for n := db * perDB; n < (db+1)*perDB; n++ {
		l := w.users[n]
		switch {
		case l == nil || l.view:
			continue
		case w.parts[to][n] == l.id:
			continue
		}
		steps = append(steps, w.dropPart(n, to)...) // what an earlier move has left
		if l.sharded {
			steps = append(steps, w.addPart(n, to))
		} else {
			var id uint16
			if gaveUp {
				id = w.newID(nil)
			} else {
				id = w.newID(l)
			}
			copies[n] = id
			steps = append(steps, func() *stream.Change {
				w.parts[to][n], w.made[id] = id, len(w.ticks)
				return change(stream.ChangeCreate, n, id)
			})
			drop := func() *stream.Change { return w.dropPart(n, from)[0]() }
			if w.tidy || l.copied || w.IntN(5) > 0 { // else it stays
				last = append(last, drop)
			}
		}
		if indexes := l.props.indexes; indexes != 0 && w.IntN(2) == 0 {
			id := l.id
			if !l.sharded {
				id = copies[n]
			}
			steps = append(steps, func() *stream.Change {
				ch := change(stream.ChangeCreateIndexes, n, id)
				ch.Indexes = indexesOf(indexes)
				return ch
			})
		}
	}
	if gaveUp {
		steps = steps[:w.IntN(len(steps)+1)]
		if w.tidy || w.IntN(2) == 0 {
			steps = append(steps, func() *stream.Change { return nil })
			for n, id := range sorted(copies) {
				steps = append(steps, func() *stream.Change {
					if w.parts[to][n] != id {
						return nil
					}
					return w.dropPart(n, to)[0]()
				})
			}
		}
		return steps
	}
	steps = append(steps, func() *stream.Change {
		w.primary[db], w.settled[db] = to, true
		for n := db * perDB; n < (db+1)*perDB; n++ {
			switch l := w.users[n]; {
			case l == nil:
			case l.view:
				w.parts[from][n], w.parts[to][n] = 0, viewID
			case copies[n] != 0:
				l.id, l.alt, l.copied, l.altMade = copies[n], l.id, true, w.made[l.id]
			}
		}
		return nil
	})
	return append(steps, last...)
}

func sorted(m map[int]uint16) func(func(int, uint16) bool) {
	return func(yield func(int, uint16) bool) {
		for n := range nameCount {
			if id := m[n]; id != 0 && !yield(n, id) {
				return
			}
		}
	}
}

// watched is a world as a job asks for its present, which goes on.
type watched struct {
	*world
	now   int             // tick
	from  int             // tick at which the run begins
	had   map[uint16]bool // by the names at the beginning of a run
	most  int             // how far it goes on between two questions
	asked int             // since the last answer
}

func (s *watched) goOn() {
	s.now = min(s.now+s.IntN(s.most+1), len(s.ticks)-1)
	for s.now < len(s.ticks)-1 && s.hides() {
		s.now++
	}
}

// hides reports a collection that shows nowhere: the copy was made before the run, and a second move is about to drop
// it. Nobody can tell then.
func (s *watched) hides() bool {
	return slices.ContainsFunc(s.ticks[s.now].users[:], func(u logical) bool {
		return u.alt != 0 && u.altMade > 0 && u.altMade <= s.from && !s.had[u.alt]
	})
}

// listed implements asked.
func (s *watched) listed(_ context.Context, db string, filter bson.D) (name string, uuid bson.Binary, err error) {
	s.goOn()
	if s.asked++; s.asked > 100 {
		return "", uuid, errors.New("asked endlessly")
	}
	for n, id := range s.ticks[s.now].listing {
		in, coll := mongo.SplitNS(nsOf(n))
		if in != db || id == 0 || id == viewID {
			continue
		}
		if filter[0].Key == "name" && filter[0].Value == coll ||
			filter[0].Key == "info.uuid" && numberOf(filter[0].Value.(bson.Binary)) == id {
			return coll, binaryOf(idNumber(id)), nil
		}
	}
	return "", uuid, nil
}

// history implements asked.
func (s *watched) history(context.Context) (read schema.Changes, until mongo.OpTime, err error) {
	s.goOn()
	return func(_ context.Context, after, until mongo.OpTime, fn func(*stream.Change, mongo.OpTime) error) error {
		for i := range s.ticks {
			if t := &s.ticks[i]; t.change != nil && after.Before(t.at) && !until.Before(t.at) {
				if err := fn(t.change, t.at); err != nil {
					return err
				}
			}
		}
		return nil
	}, s.ticks[s.now].at, nil
}
