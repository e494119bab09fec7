package oplog

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// moves joins what a server logs of a rename between databases (seen on 4.2 to 6.0). The server
// copies the collection into a new one of the other database, gives that the wanted name, and
// drops the old one. Nothing else happens to the other database meanwhile, for the server has
// it locked. The rename counts at the position of the drop. Not safe for concurrent use.
type moves struct {
	copies map[identity]*copied // those that have no name yet
	open   []moved
	ended  []moved // by the first drop that fits; another one would put that in doubt
}

// moved is a copy that has its name.
type moved struct {
	*copied
	change *stream.Change
	at     mongo.OpTime
	wall   int64  // in milliseconds
	db     string // of the copy
	until  int64  // as wall: another drop before puts the first one in doubt
}

// doubt is for how many milliseconds a second drop that fits puts the first one in doubt. The
// server drops right after it has renamed. Where it took longer, so does the doubt.
const doubt = 100

// lapse is after how many milliseconds no drop comes any more: the command was interrupted.
// The cluster's time does not decide: it may run ahead of the server's clock, and stand still.
const lapse = 10_000

// first is the position from which to read again for renames without a drop, zero for none.
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

// move takes an entry that belongs to a rename between databases. taken says that the entry
// needs no other handling. An entry that is not live only opens or closes a rename.
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

// over reports an entry after which no drop comes that ends the rename.
func (one moved) over(e *entry, info *nsInfo) bool {
	return info.db == one.db || e.at.Term != one.at.Term || e.wall > one.wall+lapse
}

// doubted fails where a drop fits a rename that an earlier one has ended, before anything
// else has happened to the copy's database.
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

// endedBy is the rename that a drop has ended.
func (one moved) endedBy(e *entry) moved {
	one.until = one.wall + doubt
	if e.wall > one.until {
		one.until = one.wall + lapse
	}
	return one
}

// fits reports that a drop may have ended the rename: it is one of a collection of another
// database of which this may be a copy.
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

// ends is the open rename that a drop ends, below 0 for none.
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

// begin takes note of a copy, and of the rename that gives it its name, which it takes.
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

// emitMove emits the rename and the drop of the copy. Without the drop of the source it
// emits that the copy has its name.
func (a *assembler) emitMove(open, drop *stream.Change, at mongo.OpTime) {
	ch := *open
	if drop == nil {
		ch.Command = 0
		a.put(stream.Event{At: at, Kind: stream.SchemaChange, NS: ch.NS, Change: &ch})
		return
	}
	ch.NS = drop.NS
	a.put(stream.Event{At: at, Kind: stream.SchemaChange, NS: ch.NS, Change: &ch})
	// Its UUID is that of the collection that was renamed.
	gone := stream.Change{Kind: stream.ChangeDrop, NS: open.NS, From: drop.NS, To: open.To}
	a.put(stream.Event{At: at, Kind: stream.SchemaChange, NS: gone.NS, Change: &gone})
}
