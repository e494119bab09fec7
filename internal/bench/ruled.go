package bench

import "context"

// ruled is a rule that a sync has besides, and which it keeps all documents with: so what
// the rule costs is seen, and not what is saved by what is left out.
type ruled struct{ name, flag, rule string }

// filterings are filters: by a field that no update changes, and by one of those that
// they do.
func filterings() []ruled {
	return []ruled{
		{"filter, no update touches it", "--filter", `{"_id":{"$gte":""}}`},
		{"filter, updates touch it", "--filter", `{"field0":{"$exists":true}}`},
	}
}

// mappings are of three of the ten fields that documents have and updates change.
func mappings() []ruled {
	return []ruled{{"rename, drop and mask", "--fields", `{"rename":{"field0":"first"},"drop":["field1"],"mask":{"field2":{"last":4}}}`}}
}

// ruled are syncs with each of some rules.
func (b *bench) ruled(st *site, rules []ruled, prepare, check func(context.Context) error, more ...string) (all []contender) {
	for _, r := range rules {
		x := b.syncs(st, prepare, check, append([]string{r.flag, dataDB + ".*=" + r.rule}, more...)...)[0]
		x.name = r.name
		all = append(all, x)
	}
	return all
}
