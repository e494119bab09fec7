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

// Name is a namespace of the source that the job has on its target.
type Name struct {
	NS     string `bson:"ns"` // source namespace
	Target string `bson:"target"`
	Type   Type   `bson:"type"`
	// UUID identifies the source's collection of the documents; empty for a view, or if unknown.
	UUID     bson.Binary `bson:"uuid"`
	Presence `bson:",inline"`
}

// Presence is what the target has of a namespace.
type Presence struct {
	// Gone: the target never got the collection, as the source had dropped it, or is not to get it.
	// Nothing is applied until its drop.
	Gone bool `bson:"gone,omitempty"`
	// Left: Gone, as its rename was left out, and the target has it under the old name.
	Left bool `bson:"left,omitempty"`
	// Copied is the end of a later copy of the collection, or when the source was seen not to have
	// it; else zero. The target may have parts of what the source dropped until then.
	Copied    mongo.OpTime `bson:"copied,omitempty"`
	Retention `bson:",inline"`
}

// Retention says where the changes of a collection go whose rename was skipped during its copy.
type Retention struct {
	// Was is the source namespace under which the target keeps it; empty for none.
	Was string `bson:"was,omitempty"`
	// Since is the position of the rename, Until the end of the copy and of the retention.
	Since mongo.OpTime `bson:"since,omitempty"`
	Until mongo.OpTime `bson:"until,omitempty"`
	// Mixed: another collection joined it.
	Mixed bool `bson:"mixed,omitempty"`
}

// Names are the namespaces of a job at one position of the source, by source and by target. With
// several rules for one target database, only they map back. Not safe for concurrent use.
type Names struct {
	bySource map[string]Name
	byTarget map[string]string
	retained map[string][]string // by Name.Was
}

func NewNames(list []Name) *Names {
	n := &Names{bySource: map[string]Name{}, byTarget: map[string]string{}, retained: map[string][]string{}}
	for _, one := range list {
		n.put(one)
	}
	return n
}

func (n *Names) Source(ns string) (Name, bool) {
	one, ok := n.bySource[ns]
	return one, ok
}

func (n *Names) Target(targetNS string) (Name, bool) {
	ns, ok := n.byTarget[targetNS]
	return n.bySource[ns], ok
}

// Meant corrects the namespace of a change to a collection or its indexes. A server logs the names of
// commands in a user's applyOps as sent, and applies them to the UUID.
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

// Absent reports a source namespace without anything on the target.
func (n *Names) Absent(ns string) bool {
	one, _ := n.Source(mongo.SeriesNS(ns))
	return one.Gone
}

// Missing reports an Absent namespace whose creation was left out: resharding or converting it does
// not bring it, unlike one that the source no longer had under its UUID.
func (n *Names) Missing(ns string) bool {
	one, _ := n.Source(mongo.SeriesNS(ns))
	return one.Gone && (one.Left || one.Copied.IsZero())
}

// NeverCame reports that the target never got a renamed collection. In a repetition after a crash,
// the names may have its new name.
func (n *Names) NeverCame(ch stream.Change) bool {
	if one, known := n.Source(ch.NS); known {
		return one.Gone
	}
	done, ok := n.Source(ch.To)
	return ok && done.Gone && len(ch.UUID.Data) > 0 && done.UUID.Equal(ch.UUID)
}

// OfDB lists the names of a source database, sorted.
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

// Targets lists the target's namespaces except views, sorted.
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

// Retentions lists collections retained under an old name, or all for "", sorted.
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

func (n *Names) Retained(ns string, at mongo.OpTime) (transform.Retained, bool) {
	one := n.bySource[ns]
	if one.Was == "" || !one.Since.Before(at) || one.Until.Before(at) {
		return transform.Retained{}, false
	}
	_, reused := n.bySource[one.Was]
	return transform.Retained{NS: one.Was, Since: one.Since, Mixed: one.Mixed,
		Reused: reused && one.Was != ns || len(n.retained[one.Was]) > 1}, true
}

func (n *Names) Retains(ns string, at mongo.OpTime) bool {
	return slices.ContainsFunc(n.retained[ns], func(now string) bool { return !n.bySource[now].Until.Before(at) })
}

// NameChange is the effect of a schema change on the names. Removed is applied first.
type NameChange struct {
	Put     []Name
	Removed []string // source namespaces
}

func (c NameChange) IsZero() bool { return len(c.Put) == 0 && len(c.Removed) == 0 }

func (n *Names) Change(c NameChange) {
	for _, ns := range c.Removed {
		n.remove(ns)
	}
	for _, one := range c.Put {
		n.put(one)
	}
}

// After returns the effect of an applied schema change. In a repetition after a crash it is the same,
// or the rest.
func (n *Names) After(ch stream.Change, rules *transform.Set) NameChange {
	kept := rules.Match(ch.NS)
	switch ch.Kind {
	case stream.ChangeCreate, stream.ChangeView:
		if !kept {
			return NameChange{}
		}
		one := Name{NS: ch.NS, Target: rules.Target(ch.NS), Type: TypeCollection, UUID: ch.UUID}
		one.Gone = n.LeftOut(ch, rules).Has(stream.OpCreate)
		switch {
		case ch.Kind == stream.ChangeView:
			one.Type, one.UUID = TypeView, bson.Binary{}
		case ch.Buckets:
			one.Type = TypeTimeSeries
		}
		return NameChange{Put: []Name{one}}
	case stream.ChangeDrop:
		c := n.without(Name{NS: ch.NS})
		if n.LeftOut(ch, rules) == 0 {
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

func (c *NameChange) end(list []Name) {
	for _, one := range list {
		if one.Retention = (Retention{}); one.Target == "" { // it has a name only for that
			c.Removed = append(c.Removed, one.NS)
		} else {
			c.Put = append(c.Put, one)
		}
	}
}

// joined is the effect of a rename on retained collections: another one joins them, or what they are
// part of is renamed. $out ends the retention of what it replaces.
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

// retains retains a collection whose rename is skipped. A rename between databases ends that: no copy
// reads its result.
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
	leftOut := n.LeftOut(ch, rules) != 0
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

// FindNames finds what a target that was filled by other means has of the source. Of several possible
// namespaces, the one that the source has counts; if that decides nothing, none.
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

func (n *Names) free(ns, targetNS string) error {
	other, ok := n.Target(targetNS)
	if !ok || other.NS == ns {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("%s and %s of the source have one name on the target, %s", other.NS, ns, targetNS),
		"change the renames of the job, or rename one of them on the source")
}

// Retain completes the retentions of a change at a position. The copy of the renamed collection ends
// at until; none is retained after it.
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

// EndRetained ends all retentions, when the copy has ended.
func (n *Names) EndRetained() (c NameChange) {
	c.end(n.Retentions(""))
	return c
}
