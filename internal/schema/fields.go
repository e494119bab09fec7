package schema

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	mapping "github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/versions"
)

// leaving are the operations whose skipping leaves collections that the source no longer has under
// their names.
const leaving = stream.OpDrop | stream.OpRename

// LeftOut returns the operations of a change that the rules skip, in a rename those of either name.
func (n *Names) LeftOut(ch stream.Change, rules *transform.Set) stream.Ops {
	one, known := n.Source(ch.NS)
	op := ch.Op(known && one.Type == TypeView && !one.Gone)
	var skips stream.Ops
	for _, ns := range []string{ch.NS, ch.To} {
		if ns != "" && rules.Match(ns) && (ns == ch.NS || ch.Kind == stream.ChangeRename) {
			skips |= rules.Route(ns).Skips
		}
	}
	if to, known := n.Source(ch.To); ch.Command == mongo.CommandOut {
		switch {
		case !known:
			op = stream.OpCreate
		case to.Gone: // what made it may have been skipped
			op = stream.OpCreate | stream.OpRename
		}
	}
	return op & skips
}

// leftOut reports a skipped change. Changes of a database are decided name by name.
func (o ApplyOptions) leftOut(ch stream.Change) bool { return o.Names.LeftOut(ch, o.Rules) != 0 }

// CheckSkip returns why the rules cannot skip operations on a collection's documents, or mark deleted
// ones.
func CheckSkip(c Collection, rules *transform.Set) error {
	r := rules.Route(c.NS)
	ops := r.Skips
	if !ops.Has(stream.OpDocuments) && r.SoftDelete == "" || c.Type == TypeView {
		return nil
	}
	why := byKind(c, "which documents are the newest depends on all that happened")
	switch {
	case why != "":
	case ops.Has(stream.OpInsert) && r.Filter != nil:
		why = "a filter keeps some of its documents, and of one that comes into the filter it is not known when it was " +
			"inserted"
	case ops.Has(stream.OpInsert) && r.Fields != nil:
		why = "its fields are mapped, which takes whole documents of the source now and then, and of one of them it is " +
			"not known when it was inserted"
	default:
		return checkKept(c, rules)
	}
	return mongo.WithHint(fmt.Errorf("cannot skip or change operations on documents of %s: %s", c.NS, why),
		fmt.Sprintf("let no pattern of --skip and --soft-delete match it (put --skip '%s=none' first), or --exclude it",
			c.NS))
}

func explain(list []Difference, rules *transform.Set) {
	uncapped := map[string]bool{} // on the target, with the indexes that become none with a limit
	for _, d := range list {
		if d.What == "option capped" {
			uncapped[d.NS] = true
		}
	}
	for i := range list {
		d := &list[i]
		ns := d.NS
		if d.Source == "" && !strings.Contains(d.What, " ") { // only the target has it
			ns, _ = rules.Source(d.NS)
		}
		if d.Source == "" && d.What == string(TypeCollection) && rules.Route(ns).History {
			d.Skipped = stream.OpDrop.String() // the history stays
		}
		ops := causes(d)
		if uncapped[d.NS] {
			ops |= stream.OpCollMod
		}
		if ops &= rules.Route(ns).Skips; ops != 0 {
			d.Skipped = ops.String()
		}
	}
}

// causes are the operations whose skipping may cause a difference. A collection that was left may
// differ in everything from a later one.
func causes(d *Difference) stream.Ops {
	what, rest, _ := strings.Cut(d.What, " ")
	switch {
	case what == "option" && rest == "expireAfterSeconds":
		return leaving | stream.OpCollMod | stream.OpTTL
	case what == "option":
		return leaving | stream.OpCollMod
	case what == "index" && strings.HasSuffix(rest, ", expireAfterSeconds"):
		return leaving | stream.OpCollMod | stream.OpCreateIndexes | stream.OpDropIndexes | stream.OpTTL
	case what == "index" && strings.Contains(rest, ", "), what == "index" && d.Source != "" && d.Target != "":
		return leaving | stream.OpCollMod | stream.OpCreateIndexes | stream.OpDropIndexes
	case what == "index" && d.Target == "": // or one that was left is in the way
		return leaving | stream.OpCreateIndexes | stream.OpDropIndexes
	case what == "index":
		return leaving | stream.OpDropIndexes
	case d.Target == "":
		return leaving | stream.OpCreate
	}
	return leaving
}

// validation are the options that validate documents as on the source, which mapped ones are not.
func validation() []string { return []string{"validator", "validationLevel", "validationAction"} }

// Mapped returns a collection as on the target where the rules map fields or keep versions: without
// validator, and with only the indexes that such documents allow (versions have none). left lists
// what is left out, and why. The options of a collection of versions keep what readers of its
// documents need; the target's collection has none.
func Mapped(c Collection, rules *transform.Set) (out Collection, left []string, err error) {
	r := rules.Route(c.NS)
	if c.Type == TypeView || !r.History && r.Fields == nil {
		return c, nil, nil
	}
	validates, index := "documents as the source has them", r.Fields.Index
	if r.History {
		validates = "documents, not their versions"
		index = func(bson.Raw) (bson.Raw, string) { return nil, "the target holds versions of documents" }
	}
	if has(c.Options, "validator") {
		left = append(left, "the validator, which judges "+validates)
	}
	if c.Options, err = without(c.Options, validation()...); err != nil {
		return c, nil, err
	}
	indexes, building := c.Indexes, c.Building
	c.Indexes, c.Building = nil, nil
	for _, ix := range indexes {
		spec, why := index(ix.Spec)
		if why != "" {
			left = append(left, fmt.Sprintf("index %s: %s", ix.Name, why))
			continue
		}
		c.Indexes = append(c.Indexes, stream.Index{Name: ix.Name, Spec: spec})
	}
	if !r.History {
		c.Building = mappedIndexes(building, r.Fields)
	}
	return c, left, nil
}

func mappedIndexes(indexes []stream.Index, m *mapping.Map) (out []stream.Index) {
	for _, ix := range indexes {
		if spec, why := m.Index(ix.Spec); why == "" {
			out = append(out, stream.Index{Name: ix.Name, Spec: spec})
		}
	}
	return out
}

func unmapped(all, mapped []stream.Index) []stream.Index {
	there := namesOf(mapped)
	return slices.DeleteFunc(slices.Clone(all), func(ix stream.Index) bool { return slices.Contains(there, ix.Name) })
}

func (o ApplyOptions) mapped(ch stream.Change) (stream.Change, error) {
	m := o.Rules.Route(ch.NS).Fields
	if m == nil {
		return ch, nil
	}
	var err error
	switch ch.Kind {
	case stream.ChangeCreate:
		ch.Options, err = without(ch.Options, validation()...)
	case stream.ChangeCollMod:
		if ch.Options, err = without(ch.Options, validation()...); err != nil {
			return ch, err
		}
		if mod := sub(ch.Options, "index"); mod != nil && sub(mod, "keyPattern") != nil {
			ch.Options, err = mappedMod(ch.Options, mod, m)
		}
	case stream.ChangeCreateIndexes:
		ch.Indexes = mappedIndexes(ch.Indexes, m)
	}
	return ch, err
}

func mappedMod(options, mod bson.Raw, m *mapping.Map) (bson.Raw, error) {
	spec, why := m.Index(rawDoc(bson.D{{Key: "key", Value: sub(mod, "keyPattern")}}))
	if why != "" {
		return without(options, "index")
	}
	mod, err := with(mod, "keyPattern", sub(spec, "key"))
	if err != nil {
		return nil, err
	}
	return with(options, "index", mod)
}

// byKind returns why documents of a collection's kind cannot be changed, or "". capped is the reason
// for capped collections.
func byKind(c Collection, capped string) string {
	switch {
	case c.Type == TypeTimeSeries:
		return "it is a time series, whose documents are packed in buckets"
	case c.Capped():
		return "it is capped: " + capped
	}
	return ""
}

// CheckFields returns why the rules cannot map the fields of a collection. keys are the fields of its
// shard key on the target.
func CheckFields(c Collection, rules *transform.Set, keys []string) error {
	m := rules.Route(c.NS).Fields
	if m == nil || c.Type == TypeView {
		return nil
	}
	why := byKind(c, "a document that is written anew may not fit in its place")
	for _, key := range keys {
		if m.TouchesPath(key) {
			why = fmt.Sprintf("a rule is about %q, which is of the shard key", key)
		}
	}
	if why == "" {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("the fields of %s cannot be mapped: %s", c.NS, why),
		"have the pattern of --fields leave it out, or --exclude it")
}

// CheckFilter returns why the rules cannot filter a collection.
func CheckFilter(c Collection, rules *transform.Set) error {
	keep := rules.Route(c.NS).Filter
	if keep == nil || c.Type == TypeView {
		return nil
	}
	why := byKind(c, "a document that an update brings into the filter cannot get its place")
	if why == "" && c.Collated() && keep.ComparesText() {
		why = "it has a collation, and the filter compares text, which is compared byte by byte here"
	}
	if why == "" {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("%s cannot be filtered: %s", c.NS, why),
		"have the pattern of --filter leave it out, or --exclude it")
}

// CheckHistory returns why the target cannot hold versions of a collection as the rules require.
func CheckHistory(c Collection, rules *transform.Set) error {
	r := rules.Route(c.NS)
	if c.Type == TypeView || !r.History {
		return nil
	}
	why := cmp.Or(byKind(c, "documents go without a word of the source"), r.NoHistory())
	if why == "" {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("the target cannot hold the history of %s: %s", c.NS, why),
		"have the patterns of --history leave it out, change the other rule, or --exclude it")
}

// OfVersions reports a view of documents of which the target holds versions: it is left out.
func OfVersions(c Collection, rules *transform.Set) bool {
	db, _ := mongo.SplitNS(c.NS)
	on, _ := c.Options.Lookup("viewOn").StringValueOK()
	return c.Type == TypeView && on != "" && rules.Match(db+"."+on) && rules.Route(db+"."+on).History
}

func (c *changer) mayRecord(ctx context.Context, ns string) error {
	coll, there, err := c.find(ctx, ns)
	if err != nil || !there {
		return err
	}
	if coll.Type != TypeCollection {
		return existsAlready(fmt.Errorf("%s is a %s on the target", ns, coll.Type), ns)
	}
	doc, err := c.anyID(ctx, ns)
	if doc != nil {
		if _, _, ok := versions.IsID(bsonraw.IDOf(doc)); !ok {
			return existsAlready(fmt.Errorf("%s exists on the target, and holds no versions", ns), ns)
		}
	}
	return err
}

// applyRecorded applies a change to collections of versions; done is false where it is as others.
func (c *changer) applyRecorded(ctx context.Context, ch stream.Change,
	o ApplyOptions) (effect Effect, done bool, err error) {
	of := func(ns string) bool { return ns != "" && o.Rules.Match(ns) && o.Rules.Route(ns).History }
	from, to := of(ch.NS), of(ch.To)
	switch ch.Kind {
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes, stream.ChangeCollMod:
		return skipped("the target holds versions of the documents"), from, nil
	case stream.ChangeDrop:
		if from && o.Recorded {
			effect = skipped("the history stays")
			effect.Dropped = []string{o.Rules.Target(ch.NS)}
			return effect, true, nil
		}
	case stream.ChangeRename:
		if to && !from {
			return effect, true, mongo.WithHint(fmt.Errorf("a rename gives %s the name %s, whose history is kept: what its "+
				"documents were is not known", ch.NS, ch.To),
				"start the job again with --restart, or --exclude the name")
		}
		if from && o.Recorded {
			return c.renameRecorded(ctx, ch, to, o)
		}
	}
	return effect, false, nil
}

// renameRecorded keeps what is under the old name. Under the new name, versions are written, or the
// collection is copied.
func (c *changer) renameRecorded(ctx context.Context, ch stream.Change, to bool,
	o ApplyOptions) (effect Effect, done bool, err error) {
	if effect = skipped("the history stays"); !to && o.Rules.Match(ch.To) {
		if effect, err = c.renameIn(ctx, ch, o.Rules.Target(ch.To), o); err != nil {
			return effect, true, err
		}
	}
	effect.Dropped = append(effect.Dropped, o.Rules.Target(ch.NS))
	return effect, true, nil
}
