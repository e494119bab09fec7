package bench

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ruled is a rule that a sync has besides, and which it keeps all documents with: so what
// the rule costs is seen, and not what is saved by what is left out.
type ruled struct {
	name, flag, rule string
	// becomes makes of a document what the target has to hold; nil is the document.
	becomes func(doc bson.Raw) (bson.Raw, error)
}

// filterings are filters: by a field that no update changes, and by one of those that
// they do.
func filterings() []ruled {
	return []ruled{
		{"filter, no update touches it", "--filter", `{"_id":{"$gte":""}}`, nil},
		{"filter, updates touch it", "--filter", `{"field0":{"$exists":true}}`, nil},
	}
}

// mappings are of three of the ten fields that documents have and updates change.
func mappings() []ruled {
	return []ruled{{"rename, drop and mask", "--fields", `{"rename":{"field0":"first"},"drop":["field1"],"mask":{"field2":{"last":4}}}`, mapped}}
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
