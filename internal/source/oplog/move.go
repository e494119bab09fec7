package oplog

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// moves joins what servers log of a rename between databases (seen on 4.2 to 6.0): create a copy in the
// other database, rename it, drop the original. The server locks the other database meanwhile. The
// rename takes effect at the position of the drop. Not safe for concurrent use.
type moves struct {
	copies map[identity]*copied // those that have no name yet
	open   []moved
	ended  []moved // by the first drop that fits; another one would put that in doubt
}

// moved is a copy that has its final name.
type moved struct {
	*copied
	change *stream.Change
	at     mongo.OpTime
	wall   int64  // in milliseconds
	db     string // of the copy
	until  int64  // as wall: another drop before puts the first one in doubt
}

// doubt is how many milliseconds after the rename a second matching drop makes the first ambiguous.
// Servers drop right after the rename. If that took longer, lapse counts instead.
const doubt = 100

// lapse is how many milliseconds after the rename no drop comes: the command was interrupted. Wall time
// decides, as the cluster time may run ahead or stand still.
const lapse = 10_000

// first returns the position to reread for renames without a drop, zero for none.
func (m *moves) first() mongo.OpTime {
	if m == nil {
		return mongo.OpTime{}
	}
	var first mongo.OpTime
	for _, one := range slices.Concat(m.open, m.ended) {
		if first.IsZero() || one.at.Before(first) {
			first = one.at
		}
	}
	return first
}

// idle reports that no rename is under way or in doubt.
func (m *moves) idle() bool { return m == nil || len(m.copies)+len(m.open)+len(m.ended) == 0 }

// move handles entries of renames between databases. taken: the entry needs no other handling.
func (a *assembler) move(e *entry, live bool) (taken bool, err error) {
	m := a.moves
	info := a.ns.lookup(e.ns)
	m.witness(e)
	var ch *stream.Change
	if string(e.op) == "c" && info.kind == nsCommand {
		switch first, _ := e.o.IndexErr(0); first.Key() {
		case "create", "renameCollection", "drop":
			if ch, err = parseChange(info.db, e.ui, e.o); err != nil {
				return false, nil //nolint:nilerr // the usual handling of the entry reports it
			}
		}
	}
	if err := m.doubted(e, info, ch); err != nil {
		return true, err
	}
	if len(m.open) > 0 {
		if i, err := m.ends(e, ch); i >= 0 || err != nil {
			if err == nil && live {
				a.emitMove(m.open[i].change, ch, e.at)
			}
			if err == nil {
				m.ended = append(m.ended, m.open[i].endedBy(e))
				m.open = slices.Delete(m.open, i, i+1)
			}
			return true, err
		}
		for len(m.open) > 0 {
			i := slices.IndexFunc(m.open, func(one moved) bool { return one.over(e, info) })
			if i < 0 {
				break
			}
			if live {
				a.emitMove(m.open[i].change, nil, e.at)
			}
			m.open = slices.Delete(m.open, i, i+1)
		}
	}
	return m.begin(ch, e, info), nil
}

// over reports that no drop can follow this entry.
func (one moved) over(e *entry, info *nsInfo) bool {
	return info.db == one.db || e.at.Term != one.at.Term || e.wall > one.wall+lapse
}

// doubted returns an error if a second drop matches a rename that has ended.
func (m *moves) doubted(e *entry, info *nsInfo, ch *stream.Change) error {
	m.ended = slices.DeleteFunc(m.ended, func(one moved) bool {
		return info.db == one.db || e.at.Term != one.at.Term || e.wall > one.until
	})
	for _, one := range m.ended {
		if one.fits(e, ch) {
			return mongo.WithHint(fmt.Errorf("cannot determine whether the drop of %s, or the one before it, ended the rename "+
				"between databases to %s", ch.NS, one.change.To),
				"start the job again with --restart, which copies the present state")
		}
	}
	return nil
}

func (one moved) endedBy(e *entry) moved {
	one.until = one.wall + doubt
	if e.wall > one.until {
		one.until = one.wall + lapse
	}
	return one
}

// fits reports whether a drop may have ended the rename.
func (one moved) fits(e *entry, ch *stream.Change) bool {
	if ch == nil || ch.Kind != stream.ChangeDrop || e.at.Term != one.at.Term {
		return false
	}
	if staged, _ := mongo.Staged(ch.NS); staged != 0 {
		return false
	}
	db, _ := mongo.SplitNS(ch.NS)
	return db != one.db && one.mayBeOf(e)
}

// ends returns the index of the open rename that a drop ends, -1 for none.
func (m *moves) ends(e *entry, ch *stream.Change) (int, error) {
	found := -1
	for i, one := range m.open {
		if !one.fits(e, ch) {
			continue
		}
		if found >= 0 {
			return -1,
				mongo.WithHint(fmt.Errorf("cannot determine which of two renames between databases ended with the drop of "+
					"%s: to %s, or to %s", ch.NS, m.open[found].change.To, one.change.To),
					"start the job again with --restart, which copies the present state")
		}
		found = i
	}
	return found, nil
}

// begin records a copy or its rename, which it takes.
func (m *moves) begin(ch *stream.Change, e *entry, info *nsInfo) (taken bool) {
	if ch == nil {
		return false
	}
	if c, _ := mongo.Staged(ch.NS); c != mongo.CommandMove {
		return false
	}
	switch ch.Kind {
	case stream.ChangeCreate:
		m.beginCopy(e)
	case stream.ChangeDrop:
		delete(m.copies, identityOf(e.ui))
	case stream.ChangeRename:
		m.open = append(m.open, moved{copied: m.endCopy(e), change: ch, at: e.at, wall: e.wall, db: info.db})
		return true
	}
	return false
}

// emitMove emits the rename and the drop of the copy, or, without the original's drop, only the copy's
// new name.
func (a *assembler) emitMove(open, drop *stream.Change, at mongo.OpTime) {
	ch := *open
	if drop == nil {
		ch.Command = 0
		a.put(stream.Event{At: at, Kind: stream.SchemaChange, NS: ch.NS, Change: &ch})
		return
	}
	ch.NS = drop.NS
	a.put(stream.Event{At: at, Kind: stream.SchemaChange, NS: ch.NS, Change: &ch})
	gone := stream.Change{Kind: stream.ChangeDrop, NS: open.NS, From: drop.NS, To: open.To}
	a.put(stream.Event{At: at, Kind: stream.SchemaChange, NS: gone.NS, Change: &gone})
}
