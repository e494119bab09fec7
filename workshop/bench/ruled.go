package bench

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ruled is a rule that a sync has besides.
type ruled struct {
	name, flag, rule string
	// becomes makes of a document what the target has to hold; nil is the document.
	becomes func(doc bson.Raw) (bson.Raw, error)
	// keeps says which documents the target has to hold; nil is all: so what the rule costs
	// is seen, and not what is saved by what is left out.
	keeps func(doc bson.Raw) bool
}

// filterings are filters that keep all documents: by a field that no update changes, and
// by one of those that they do.
func filterings() []ruled {
	return []ruled{
		{name: "filter, no update touches it", flag: "--filter", rule: `{"_id":{"$gte":""}}`},
		{name: "filter, updates touch it", flag: "--filter", rule: `{"field0":{"$exists":true}}`},
	}
}

// choosings are filters for a copy: one that keeps all, and one that keeps a hundredth, as
// the _ids are hashes.
func choosings() []ruled {
	const from, to = "user100", "user102"
	return []ruled{
		{name: "filter that keeps all", flag: "--filter", rule: `{"field0":{"$exists":true}}`},
		{name: "filter that keeps 1 %", flag: "--filter", rule: `{"_id":{"$gte":"` + from + `","$lt":"` + to + `"}}`, keeps: func(doc bson.Raw) bool {
			id := doc.Lookup("_id").StringValue()
			return id >= from && id < to
		}},
	}
}

// mappings are of three of the ten fields that documents have and updates change.
func mappings() []ruled {
	return []ruled{{name: "rename, drop and mask", flag: "--fields", rule: `{"rename":{"field0":"first"},"drop":["field1"],"mask":{"field2":{"last":4}}}`, becomes: mapped}}
}

// mapped is a document after the rule of mappings: new names stand behind _id.
func mapped(doc bson.Raw) (bson.Raw, error) {
	var d bson.D
	if err := bson.Unmarshal(doc, &d); err != nil {
		return nil, err
	}
	out := bson.D{d[0], {Key: "first", Value: d[1].Value}}
	for _, f := range d[3:] {
		if text, ok := f.Value.(string); ok && f.Key == "field2" {
			f.Value = strings.Repeat("*", len(text)-4) + text[len(text)-4:]
		}
		out = append(out, f)
	}
	return bson.Marshal(out)
}

// ruled are syncs with each of some rules. check makes the check of what a rule leaves.
func (b *bench) ruled(st *site, rules []ruled, prepare func(context.Context) error, check func(ruled) func(context.Context) error, more ...string) (all []contender) {
	for _, r := range rules {
		x := b.syncs(st, prepare, check(r), append([]string{r.flag, dataDB + ".*=" + r.rule}, more...)...)[0]
		x.name = r.name
		all = append(all, x)
	}
	return all
}
