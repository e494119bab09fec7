package schema

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Name is one namespace of the source that the job has on its target.
type Name struct {
	NS     string // source namespace
	Target string
	Type   Type
	// UUID identifies the source's collection that holds the documents; empty
	// for a view, and where it is not known.
	UUID bson.Binary
	Presence
}

// Presence says what the target has of a namespace.
type Presence struct {
	// Gone: the source has dropped the collection already, and the target never
	// got it, or is not to get it. Nothing is applied to it until its drop comes.
	Gone bool `bson:"gone,omitempty"`
	// Left: it is Gone because its rename was left out, and the target goes on having it
	// under the name of before.
	Left bool `bson:"left,omitempty"`
	// Copied is the end of the copy of a collection that was copied after the job's own. Or it
	// is when the source was seen not to have it any more, else zero. What the source gave up
	// until then may be on the target in part.
	Copied    mongo.OpTime `bson:"copied,omitempty"`
	Retention `bson:",inline"`
}

// Retention says where the changes of a collection go whose rename was skipped while it was
// copied: the copy may have read them.
type Retention struct {
	// Was is the source namespace under which the target keeps the collection; empty for none.
	Was string `bson:"was,omitempty"`
	// Since is the position of the rename, Until the end of the copy, with which it ends.
	Since mongo.OpTime `bson:"since,omitempty"`
	Until mongo.OpTime `bson:"until,omitempty"`
	// Mixed: another collection was joined to it.
	Mixed bool `bson:"mixed,omitempty"`
}

// Names are the namespaces of a job at one position of the source, by their
// names there and on the target. With several rules into one target database,
// nothing else reports what stems from which source. Not safe for concurrent use.
type Names struct {
	bySource map[string]Name
	byTarget map[string]string
	retained map[string][]string // those with Name.Was, by that
}

// NewNames starts with the given names.
func NewNames(list []Name) *Names {
	n := &Names{bySource: map[string]Name{}, byTarget: map[string]string{}, retained: map[string][]string{}}
	for _, one := range list {
		n.put(one)
	}
	return n
}

// Source finds a name by the source's namespace.
func (n *Names) Source(ns string) (Name, bool) {
	one, ok := n.bySource[ns]
	return one, ok
}

// Target finds a name by the target's namespace.
func (n *Names) Target(targetNS string) (Name, bool) {
	ns, ok := n.byTarget[targetNS]
	return n.bySource[ns], ok
}

// Meant gives a change that alters a collection, or its indexes, the name of the collection
// that it is about. A server logs such a command in a user's applyOps as it was sent, and
// does it to the collection of the UUID.
func (n *Names) Meant(ch stream.Change) stream.Change {
	switch ch.Kind {
	case stream.ChangeCollMod, stream.ChangeCreateIndexes, stream.ChangeDropIndexes:
	default:
		return ch
	}
	if one, ok := n.Source(ch.NS); len(ch.UUID.Data) == 0 || ok && (len(one.UUID.Data) == 0 || one.UUID.Equal(ch.UUID)) {
		return ch
	}
	for ns, one := range n.bySource {
		if one.UUID.Equal(ch.UUID) {
			ch.NS = ns
		}
	}
	return ch
}

// Absent tells of a source namespace that has nothing on the target yet.
func (n *Names) Absent(ns string) bool {
	one, _ := n.Source(mongo.SeriesNS(ns))
	return one.Gone
}

// Missing reports that a source namespace is Absent because its creation was left out. Resharding
// or converting its collection does not bring it. One that is Absent because the source no longer
// had it under its UUID comes with such a command.
func (n *Names) Missing(ns string) bool {
	one, _ := n.Source(mongo.SeriesNS(ns))
	return one.Gone && (one.Left || one.Copied.IsZero())
}

// NeverCame reports that what a rename is about never came to the target. Asked once more after
// a crash, the names may have it under its new name.
func (n *Names) NeverCame(ch stream.Change) bool {
	if one, known := n.Source(ch.NS); known {
		return one.Gone
	}
	done, ok := n.Source(ch.To)
	return ok && done.Gone && len(ch.UUID.Data) > 0 && done.UUID.Equal(ch.UUID)
}

// OfDB lists what stems from a database of the source, sorted.
func (n *Names) OfDB(db string) []Name {
	var out []Name
	for ns, one := range n.bySource {
		if from, _ := mongo.SplitNS(ns); from == db {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b Name) int { return cmp.Compare(a.NS, b.NS) })
	return out
}

// All lists the names, sorted.
func (n *Names) All() []Name {
	return slices.SortedFunc(maps.Values(n.bySource), func(a, b Name) int { return cmp.Compare(a.NS, b.NS) })
}

// Targets lists the target's namespaces that are not views, sorted.
func (n *Names) Targets() []string {
	var out []string
	for _, one := range n.bySource {
		if one.Type != TypeView && !one.Gone {
			out = append(out, one.Target)
		}
	}
	slices.Sort(out)
	return out
}

func (n *Names) put(one Name) {
	n.remove(one.NS)
	n.bySource[one.NS], n.byTarget[one.Target] = one, one.NS
	if one.Was != "" {
		n.retained[one.Was] = append(n.retained[one.Was], one.NS)
	}
}

func (n *Names) remove(ns string) {
	old, ok := n.bySource[ns]
	if ok && n.byTarget[old.Target] == ns {
		delete(n.byTarget, old.Target)
	}
	if old.Was != "" {
		n.retained[old.Was] = slices.DeleteFunc(n.retained[old.Was], func(other string) bool { return other == ns })
		if len(n.retained[old.Was]) == 0 {
			delete(n.retained, old.Was)
		}
	}
	delete(n.bySource, ns)
}

// Retentions lists collections that are retained under a name of before, sorted; "" for all.
func (n *Names) Retentions(was string) (list []Name) {
	if was == "" {
		for was := range n.retained {
			list = append(list, n.Retentions(was)...)
		}
		slices.SortFunc(list, func(a, b Name) int { return cmp.Compare(a.NS, b.NS) })
		return list
	}
	for _, ns := range n.retained[was] {
		list = append(list, n.bySource[ns])
	}
	return list
}

// Retained implements transform.Retentions.
func (n *Names) Retained(ns string, at mongo.OpTime) (transform.Retained, bool) {
	one := n.bySource[ns]
	if one.Was == "" || !one.Since.Before(at) || one.Until.Before(at) {
		return transform.Retained{}, false
	}
	_, reused := n.bySource[one.Was]
	return transform.Retained{NS: one.Was, Since: one.Since, Mixed: one.Mixed,
		Reused: reused && one.Was != ns || len(n.retained[one.Was]) > 1}, true
}

// Retains implements transform.Retentions.
func (n *Names) Retains(ns string, at mongo.OpTime) bool {
	return slices.ContainsFunc(n.retained[ns], func(now string) bool { return !n.bySource[now].Until.Before(at) })
}

// NameChange is what a schema change does to the names: first those Removed go.
type NameChange struct {
	Put     []Name
	Removed []string // source namespaces
}

// IsZero reports that nothing changes.
func (c NameChange) IsZero() bool { return len(c.Put) == 0 && len(c.Removed) == 0 }

// Change takes a change over.
func (n *Names) Change(c NameChange) {
	for _, ns := range c.Removed {
		n.remove(ns)
	}
	for _, one := range c.Put {
		n.put(one)
	}
}

// After is what an applied schema change does to the names. Asked once more
// after a crash it is the same, or what was left to do.
func (n *Names) After(ch stream.Change, rules *transform.Set) NameChange {
	kept := rules.Match(ch.NS)
	switch ch.Kind {
	case stream.ChangeCreate, stream.ChangeView:
		if !kept {
			return NameChange{}
		}
		one := Name{NS: ch.NS, Target: rules.Target(ch.NS), Type: TypeCollection, UUID: ch.UUID}
		one.Gone = n.leftOut(ch, rules).Has(stream.OpCreate)
		switch {
		case ch.Kind == stream.ChangeView:
			one.Type, one.UUID = TypeView, bson.Binary{}
		case ch.Buckets:
			one.Type = TypeTimeSeries
		}
		return NameChange{Put: []Name{one}}
	case stream.ChangeDrop:
		c := n.without(Name{NS: ch.NS})
		if n.leftOut(ch, rules) == 0 {
			c.end(n.Retentions(ch.NS))
		}
		return c
	case stream.ChangeDropView:
		if one, ok := n.Source(ch.NS); ok && one.Type == TypeView {
			return n.without(one)
		}
	case stream.ChangeDropDatabase:
		return n.without(n.OfDB(ch.NS)...)
	case stream.ChangeDropAllViews:
		return n.without(views(n.OfDB(ch.NS))...)
	case stream.ChangeRename:
		return n.renamed(ch, rules)
	default: // of a target that was filled by other means, the UUIDs come with the changes
		one, ok := n.Source(ch.NS)
		unknown := len(one.UUID.Data) == 0 && one.Type != TypeView && len(ch.UUID.Data) > 0
		if ok && (unknown || ch.Kind == stream.ChangeIdentity) {
			one.UUID = ch.UUID
			return NameChange{Put: []Name{one}}
		}
	}
	return NameChange{}
}

func views(list []Name) []Name {
	return slices.DeleteFunc(list, func(one Name) bool { return one.Type != TypeView })
}

func (n *Names) without(list ...Name) (c NameChange) {
	for _, one := range list {
		if _, ok := n.Source(one.NS); ok {
			c.Removed = append(c.Removed, one.NS)
		}
	}
	return c
}

// end ends retentions.
func (c *NameChange) end(list []Name) {
	for _, one := range list {
		if one.Retention = (Retention{}); one.Target == "" { // it was among the names for that alone
			c.Removed = append(c.Removed, one.NS)
		} else {
			c.Put = append(c.Put, one)
		}
	}
}

// joined is what a rename does to retained collections: it joins another one to them, or
// renames what they have become a part of. What $out has replaced is retained no more.
func (n *Names) joined(ch stream.Change) (c NameChange) {
	for _, one := range n.Retentions(ch.NS) {
		one.Was, one.Mixed = ch.To, true
		c.Put = append(c.Put, one)
	}
	list := n.Retentions(ch.To)
	switch ch.Command {
	case mongo.CommandCapped, mongo.CommandReshard: // the documents stay the same
	case mongo.CommandOut:
		if to, there := n.Source(ch.To); there && !to.UUID.Equal(ch.UUID) { // else it was made for the command
			c.end(list)
		}
	default:
		for _, one := range list {
			one.Mixed = true
			c.Put = append(c.Put, one)
		}
	}
	return c
}

// retains has a collection whose rename is skipped get its changes under the name of before.
// A rename between databases ends that: no copy reads what it makes.
func (one *Name) retains(ch stream.Change, leftOut, known bool) {
	switch {
	case ch.Command == mongo.CommandReshard:
	case ch.Command != 0 || !leftOut:
		one.Retention = Retention{}
	case one.Was == "" && known && !one.Gone && one.Type == TypeCollection:
		one.Was = ch.NS
	}
}

func (n *Names) renamed(ch stream.Change, rules *transform.Set) NameChange {
	leftOut := n.leftOut(ch, rules) != 0
	var c NameChange
	if !leftOut {
		c = n.joined(ch)
	}
	c.Removed = append(c.Removed, n.without(Name{NS: ch.NS}).Removed...)
	one, known := n.Source(ch.NS)
	had := !one.Gone
	if one.retains(ch, leftOut, known); !rules.Match(ch.To) && one.Was == "" {
		return c
	}
	if !known {
		one = Name{Type: TypeCollection, UUID: ch.UUID}
		if ch.Buckets {
			one.Type = TypeTimeSeries
		}
	}
	if len(ch.UUID.Data) > 0 { // another one if movePrimary has moved it
		one.UUID = ch.UUID
	}
	one.NS, one.Target = ch.To, ""
	if rules.Match(ch.To) {
		one.Target = rules.Target(ch.To)
	}
	if one.Left {
		one.Copied = mongo.OpTime{} // of what the target has under another name
	}
	one.Gone, one.Left = one.Gone && !comesAnew(ch, rules), false
	if leftOut && ch.Command != mongo.CommandCapped { // which changes options
		if one.Gone, one.Left = true, had && known; !one.Left {
			one.Copied = mongo.OpTime{}
		}
	}
	if (ch.Command == mongo.CommandCapped || ch.Command == mongo.CommandReshard) && n.Missing(ch.To) {
		was, _ := n.Source(mongo.SeriesNS(ch.To))
		one.Gone, one.Left, one.Copied = true, was.Left, was.Copied
		if ch.Command == mongo.CommandReshard {
			one.Retention = was.Retention
		}
	}
	if !known && n.NeverCame(ch) {
		one, _ = n.Source(ch.To)
	}
	c.Put = append(c.Put, one)
	return c
}

// FindNames finds what a target that was filled by other means has of the
// source. Where a name can stem from several namespaces, the one that the source has
// now counts; if that decides nothing either, it is not among the names.
func FindNames(ctx context.Context, src, dst *mongo.Cluster, rules *transform.Set) ([]Name, error) {
	have, err := listNames(ctx, dst, Scope{Readable: true, DB: rules.MatchTargetDB,
		NS: func(ns string) bool { return len(rules.Sources(ns)) > 0 }})
	if err != nil {
		return nil, err
	}
	list, err := listNames(ctx, src, Scope{NS: rules.Match, DB: rules.MatchDB})
	if err != nil {
		return nil, err
	}
	onSource := map[string]bool{}
	for _, c := range list {
		onSource[c.NS] = true
	}
	var out []Name
	for _, c := range have {
		from := rules.Sources(c.NS)
		if len(from) > 1 {
			from = slices.DeleteFunc(from, func(ns string) bool { return !onSource[ns] })
		}
		if len(from) == 1 {
			out = append(out, Name{NS: from[0], Target: c.NS, Type: c.Type})
		}
	}
	return out, nil
}

// free reports an error when the target's namespace is that of another one of
// the source, which is still there.
func (n *Names) free(ns, targetNS string) error {
	other, ok := n.Target(targetNS)
	if !ok || other.NS == ns {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("%s and %s of the source have one name on the target, %s", other.NS, ns, targetNS),
		"change the renames of the job, or rename one of them on the source")
}

// Retain completes what a change at a position does to retentions. The copy of the collection
// that it renames ends at until; where it has ended, nothing is retained.
func (c *NameChange) Retain(at, until mongo.OpTime) {
	c.Put = slices.DeleteFunc(c.Put, func(one Name) bool {
		return one.Was != "" && one.Target == "" && cmp.Or(one.Until, until).Before(at)
	})
	for i := range c.Put {
		switch one := &c.Put[i]; {
		case one.Was == "":
		case cmp.Or(one.Until, until).Before(at):
			one.Retention = Retention{}
		case one.Until.IsZero():
			one.Since, one.Until = at, until
		}
	}
}

// EndRetained ends all retentions, when the copy is over.
func (n *Names) EndRetained() (c NameChange) {
	c.end(n.Retentions(""))
	return c
}
