package schema

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	mapping "github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// validation are the options of a collection that judge documents as they are on the
// source. What is mapped is another document.
func validation() []string { return []string{"validator", "validationLevel", "validationAction"} }

// Mapped returns a collection as it has to be on the target where the rules map the fields of
// its documents, or keep versions of them. It has no validator, and only the indexes that such
// documents allow. Versions have none. The result left says what is left out, and why.
//
// The options of a collection of versions keep what says how its documents are read. The
// target's collection is made without any.
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

// mappedIndexes are those that can be had of mapped documents.
func mappedIndexes(indexes []stream.Index, m *mapping.Map) (out []stream.Index) {
	for _, ix := range indexes {
		if spec, why := m.Index(ix.Spec); why == "" {
			out = append(out, stream.Index{Name: ix.Name, Spec: spec})
		}
	}
	return out
}

// unmapped are those of all indexes that are not among the mapped ones.
func unmapped(all, mapped []stream.Index) []stream.Index {
	there := namesOf(mapped)
	return slices.DeleteFunc(slices.Clone(all), func(ix stream.Index) bool { return slices.Contains(there, ix.Name) })
}

// mapped is a change as it is to be made to a collection whose documents are mapped.
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

// mappedMod has a collMod name the index by the key that it has on the target.
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

// byKind says why the documents of a collection cannot become others: because of what it is.
// capped is the reason where it is capped. It is empty where they can.
func byKind(c Collection, capped string) string {
	switch {
	case c.Type == TypeTimeSeries:
		return "it is a time series, whose documents are packed in buckets"
	case c.Capped():
		return "it is capped: " + capped
	}
	return ""
}

// CheckFields says why the documents of a collection cannot be mapped as the rules want
// it; nil where they can be, or are not. keys are the fields of the shard key that the
// collection has, or is to have, on the target.
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

// CheckFilter says why the documents of a collection cannot be filtered as the rules
// want it; nil where they can be, or all of them are kept.
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
