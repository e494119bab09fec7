package origin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/testseed"
)

// player is a job that follows a world.
type player struct {
	*watched
	rules *transform.Set
	names *schema.Names
	props map[string]props // of collections of the target

	m      *moves
	passed map[pass]bool // in this run
	ofTick map[*stream.Change]int
	log    []string     // if verbose
	ahead  mongo.OpTime // the names have the changes before it
}

var errStop = errors.New("stop")

// pass is a change of a command, as it is applied to a name.
type pass struct {
	command  int
	kind     stream.ChangeKind
	ns, what string
}

func (p *player) logf(format string, args ...any) {
	if p.verbose {
		p.log = append(p.log, fmt.Sprintf(format, args...))
	}
}

// play follows the world from some position to its end.
func (p *player) play(ctx context.Context) error {
	i := p.complete(p.IntN(len(p.ticks)))
	p.snapshot(i)
	for i < len(p.ticks)-1 {
		next, err := p.run(ctx, i)
		if err != nil {
			return err
		}
		i = next
	}
	return nil
}

// complete is the last tick at the time of one.
func (p *player) complete(i int) int {
	for i+1 < len(p.ticks) && p.ticks[i+1].at == p.ticks[i].at {
		i++
	}
	return i
}

// calm returns the last tick from one on before the next change is reported.
func (p *player) calm(i int) int {
	for i+1 < len(p.ticks) && p.ticks[i+1].change == nil {
		i++
	}
	return i
}

func (p *player) snapshot(i int) {
	seen := &p.ticks[i+p.IntN(p.calm(i)-i+1)]
	var names []schema.Name
	p.props = map[string]props{}
	for n, id := range seen.listing {
		one := schema.Name{NS: nsOf(n), Target: nsOf(n), Type: schema.TypeCollection}
		switch id {
		case 0:
			continue
		case viewID:
			one.Type = schema.TypeView
		default:
			one.UUID = binaryOf(idNumber(id))
			if l := p.of[id]; l != nil {
				for _, u := range seen.users {
					if u.id == id {
						p.props[one.NS] = u.props
					}
				}
			}
		}
		names = append(names, one)
	}
	p.names = schema.NewNames(names)
	p.logf("snapshot at %d: %s", i, p.have())
}

func (p *player) have() (s string) {
	for _, one := range p.names.All() {
		s += fmt.Sprintf("%s %d %v; ", one.NS, numberOf(one.UUID), p.props[one.NS])
	}
	return s
}

// run goes on from a tick until the job is broken off, and returns the tick that it has reached.
func (p *player) run(ctx context.Context, from int) (int, error) {
	p.m = newMoves(p.watched, p.names.All(), stream.Position{At: p.ticks[from].at}, p.ahead)
	p.passed, p.ofTick = map[pass]bool{}, map[*stream.Change]int{}
	p.most = []int{0, 1, 5, len(p.ticks)}[p.IntN(4)]
	p.logf("run from %d with %s", from, p.have())
	reached := from
	p.watched.from, p.had = from, map[uint16]bool{}
	for _, one := range p.names.All() {
		p.had[numberOf(one.UUID)] = true
	}
	emit := p.m.wrap(func(ctx context.Context, b *stream.Batch) error {
		events := b.Events
		for i := reached + 1; i < len(p.ticks) && !b.End.Before(p.ticks[i].at); i++ {
			for len(events) > 0 && p.ofTick[events[0].Change] == i {
				if err := p.apply(events[0].Change, i); err != nil {
					return err
				}
				events = events[1:]
			}
			if p.complete(i) != i {
				continue
			}
			reached = i
			if !p.ahead.Before(p.ticks[i].at) && p.ticks[i].at != p.ahead {
				continue
			}
			if err := p.check(i); err != nil {
				return err
			}
			if err := p.look(ctx, i); err != nil {
				return err
			}
			if p.IntN(20) > 0 {
				continue
			}
			// Broken off. The changes of the next time may have been applied in part.
			if len(events) > 0 && p.IntN(2) == 0 {
				when := events[0].At
				p.ahead = when
				for len(events) > 0 && events[0].At == when && p.IntN(3) > 0 {
					if err := p.apply(events[0].Change, p.ofTick[events[0].Change]); err != nil {
						return err
					}
					events = events[1:]
				}
			}
			return errStop
		}
		return nil
	})
	for reached < len(p.ticks)-1 {
		end := p.complete(min(reached+1+p.IntN(6), len(p.ticks)-1))
		b := &stream.Batch{Start: p.ticks[reached].at, End: p.ticks[end].at}
		for i := reached + 1; i <= end; i++ {
			if t := &p.ticks[i]; t.change != nil {
				ch := *t.change
				p.ofTick[&ch] = i
				b.Events = append(b.Events, stream.Event{Kind: stream.SchemaChange, NS: ch.NS, At: t.at, Change: &ch})
			}
		}
		p.now = max(p.now, end)
		p.goOn()
		p.asked = 0
		switch err := emit(ctx, b); {
		case errors.Is(err, errStop):
			return reached, nil
		case err != nil:
			return 0, err
		}
	}
	return reached, nil
}

// apply does to the target what the source does.
func (p *player) apply(ch *stream.Change, i int) error {
	p.logf("at %d passes %s", i, describe(ch))
	once := pass{command: p.ticks[i].by, kind: ch.Kind, ns: ch.NS}
	for _, ix := range ch.Indexes {
		once.what += ix.Name
	}
	has := p.props[ch.NS]
	one, there := p.names.Source(ch.NS)
	switch ch.Kind {
	case stream.ChangeCreate:
		if there {
			return fmt.Errorf("tick %d: %s exists", i, ch.NS)
		}
		p.props[ch.NS] = props{}
	case stream.ChangeRename:
		if _, replaced := p.names.Source(ch.To); replaced && !ch.DropTarget || !there {
			return fmt.Errorf("tick %d: cannot rename %s to %s", i, ch.NS, ch.To)
		}
		delete(p.props, ch.NS)
		p.props[ch.To] = has
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes, stream.ChangeCollMod:
		if !there || one.Type == schema.TypeView {
			return fmt.Errorf("tick %d: no %s to change", i, ch.NS)
		}
		for _, ix := range ch.Indexes {
			bit := uint8(1) << (ix.Name[0] - '0')
			has.indexes |= bit
			if ch.Kind == stream.ChangeDropIndexes {
				has.indexes &^= bit
			}
		}
		if ch.Kind == stream.ChangeCollMod {
			has.mod = uint8(ch.Options.Lookup("n").Int32())
		}
		p.props[ch.NS] = has
	}
	p.names.Change(p.names.After(*ch, p.rules))
	if ch.Kind == stream.ChangeDrop || ch.Kind == stream.ChangeDropDatabase {
		for ns := range p.props {
			if _, there := p.names.Source(ns); !there {
				delete(p.props, ns)
			}
		}
	}
	if there && p.passed[once] && ch.Kind != stream.ChangeIdentity { // perhaps first to a copy that was left behind
		return fmt.Errorf("tick %d: passes again", i)
	}
	p.passed[once] = true
	return nil
}

// check compares what the job has with what users see after a tick.
func (p *player) check(i int) error {
	for n := range nameCount {
		var err error
		for j := i; j <= p.calm(i); j++ { // a snapshot may be ahead
			if err = p.same(n, &p.ticks[j]); err == nil {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("tick %d: %w", i, err)
		}
	}
	return nil
}

func (p *player) same(n int, t *tick) error {
	one, there := p.names.Source(nsOf(n))
	u := &t.users[n]
	switch id := numberOf(one.UUID); {
	case t.flux[n] > 0:
	case there != (u.id != 0):
		return fmt.Errorf("users have %s: %t", nsOf(n), !there)
	case there && (one.Type == schema.TypeView) != u.view:
		return fmt.Errorf("%s is a view: %t", nsOf(n), u.view)
	case there && !u.view && id != u.id && (u.alt == 0 || id != u.alt) && !(t.left[n] && p.of[id] == nil):
		return fmt.Errorf("%s is %d or %d, not %d", nsOf(n), u.id, u.alt, id)
	case there && !u.view && u.busy == 0 && p.props[nsOf(n)] != u.props:
		return fmt.Errorf("%s has %v, want %v", nsOf(n), p.props[nsOf(n)], u.props)
	}
	return nil
}

// look asks which collections those of the job are by now.
func (p *player) look(ctx context.Context, i int) error {
	for _, one := range p.names.All() {
		id := numberOf(one.UUID)
		if id == 0 || p.IntN(3) > 0 || p.of[id] == nil {
			continue
		}
		db, _ := mongo.SplitNS(one.NS)
		p.asked = 0
		from := p.now
		name, err := p.m.name(ctx, p.watched, db, one.UUID)
		if mongo.Classify(err) == mongo.ClassRetry && p.now > from { // it moved while it was looked for
			continue
		}
		var want []string
		for j := from; j <= p.complete(p.now); j++ {
			now, flux := p.nameAt(p.of[id], j)
			if want = append(want, now); flux {
				want = append(want, "")
			}
		}
		ok := err == nil && slices.Contains(want, name)
		if !ok {
			return fmt.Errorf("tick %d: at tick %d, %s %d is %q, want %q: %w", i, p.now, one.NS, id, name, want, err)
		}
	}
	return nil
}

// nameAt is the name of a collection after a tick, "" for none, and whether that is about to change.
func (p *player) nameAt(l *logical, i int) (name string, flux bool) {
	for n, id := range p.ticks[i].listing {
		if id != 0 && id != viewID && p.of[id] == l {
			_, coll := mongo.SplitNS(nsOf(n))
			return coll, p.ticks[i].flux[n] > 0
		}
	}
	return "", false
}

// TestMovesRandom: whatever users do while their databases move, a job has what they have at each position.
func TestMovesRandom(t *testing.T) {
	rules, err := transform.New(transform.Config{})
	if err != nil {
		t.Fatal(err)
	}
	seed := testseed.Of(t)
	play := func(n uint64, verbose bool) error {
		r := rand.New(rand.NewPCG(seed, n))
		w := newWorld(r, 10+r.IntN(50), verbose)
		for range 3 {
			p := &player{watched: &watched{world: w}, rules: rules}
			if err := p.play(t.Context()); err != nil {
				return fmt.Errorf("%w\n%s\n\n%s", err, strings.Join(w.story, "\n"), strings.Join(p.log, "\n"))
			}
		}
		return nil
	}
	for n := range uint64(testseed.Rounds(t, 2000)) {
		if play(n, false) != nil {
			t.Fatalf("history %d: %v", n, play(n, true))
		}
	}
}
