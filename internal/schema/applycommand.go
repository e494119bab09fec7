package schema

import (
	"context"
	"errors"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// ofCommand reports a rename by which a server ends a command, where the filled collection
// cannot simply replace the one that the command is about. There the target has other or
// additional documents of that collection.
func (o ApplyOptions) ofCommand(ch stream.Change) bool {
	if ch.Kind != stream.ChangeRename || !o.Rules.Commands() || !o.Rules.Match(ch.To) || !o.Rules.Route(ch.To).Ruled {
		return false
	}
	switch ch.Command {
	case mongo.CommandReshard:
		return true
	case mongo.CommandOut, mongo.CommandCapped:
		_, known := o.Names.Source(ch.NS) // not in a job that an older version began
		return known || o.Maybe
	}
	return false
}

// applyCommand ends a command on the target. What $out has written is in the collection
// already.
func (c *changer) applyCommand(ctx context.Context, ch stream.Change, o ApplyOptions) (Effect, error) {
	missing := o.Names.Missing(ch.To)
	comes := o.Names.Absent(ch.To) && !missing
	switch {
	case ch.Command == mongo.CommandReshard && missing:
		return skipped("%s never came to the target", ch.To), nil
	case ch.Command == mongo.CommandReshard && (o.Cut || comes):
		return Effect{Applied: true, Resync: &ch.UUID, ResyncNS: o.Rules.Target(ch.To), Keep: true}, nil
	case ch.Command == mongo.CommandReshard:
		return skipped("the documents of %s are the same", ch.To), nil
	case ch.Command == mongo.CommandCapped && !o.staysUncapped(ch):
		return c.renameKept(ctx, ch, o.Rules.Target(ch.NS), o.Rules.Target(ch.To), o)
	}
	effect := Effect{Applied: true, Dropped: []string{o.Rules.Target(ch.NS)}}
	switch {
	case ch.Command == mongo.CommandCapped && comes:
		effect.Resync, effect.ResyncNS = &ch.UUID, o.Rules.Target(ch.To)
	case ch.Command == mongo.CommandCapped && missing:
		effect.Applied, effect.Skipped = false, ch.To+" never came to the target"
	case ch.Command == mongo.CommandCapped:
		c.o.Log.Warn("convertToCapped is not applied: by the rules the target's collection keeps its options",
			"ns", o.Rules.Target(ch.To))
		effect.Applied, effect.Skipped = false, "the collection stays as it is"
	case o.leftOut(ch):
		effect.Applied, effect.Skipped = false, "create is skipped"
	}
	return effect, c.colls.Drop(ctx, o.Rules.Target(ch.NS))
}

// staysUncapped reports that the target's collection does not become capped. The target has
// none, the rules skip the change, or they keep documents that a capped one might remove.
func (o ApplyOptions) staysUncapped(ch stream.Change) bool {
	return o.Names.Missing(ch.To) || o.leftOut(ch) || o.Rules.Others() || o.Rules.Route(ch.To).Skips.Has(leaving)
}

// CheckCollection says why the rules cannot be about a collection, as it is on the source.
func CheckCollection(c Collection, rules *transform.Set) error {
	return errors.Join(CheckFilter(c, rules), CheckSkip(c, rules), CheckFields(c, rules, nil), CheckHistory(c, rules))
}
