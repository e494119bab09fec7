package schema

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
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
