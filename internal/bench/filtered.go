package bench

import "context"

// filtering is a filter that a sync has besides, and keeps all documents: so what it
// costs is seen, and not what is saved by what is left out.
type filtering struct{ name, filter string }

// filterings are the filters of the scenarios: by a field that no update changes, and by
// one of those that they do.
func filterings() []filtering {
	return []filtering{{"filter, no update touches it", `{"_id":{"$gte":""}}`}, {"filter, updates touch it", `{"field0":{"$exists":true}}`}}
}

// filtered are syncs with each of some filters.
func (b *bench) filtered(st *site, filters []filtering, prepare, check func(context.Context) error, more ...string) (all []contender) {
	for _, f := range filters {
		x := b.syncs(st, prepare, check, append([]string{"--filter", dataDB + ".*=" + f.filter}, more...)...)[0]
		x.name = f.name
		all = append(all, x)
	}
	return all
}
