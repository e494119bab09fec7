package bench

import (
	"slices"

	"github.com/millrace/millrace/workshop/plot"
)

// overview is a table over several cases, with its charts.
type overview struct {
	Title  string
	Header []string
	Rows   [][]string
	Notes  []string
	plot.Sheet
}

// overviews are those of a report, none where it has no such cases.
func (r *Report) overviews() []overview {
	all := r.seedOverviews()
	if c := r.chaining(); len(c) > 0 {
		header, rows := c.table()
		all = append(all, overview{Title: "Chaining off against on, beside what was published", Header: header, Rows: rows})
	}
	return all
}

// seedOverviews are those of new members.
func (r *Report) seedOverviews() (all []overview) {
	own, published := r.seeded()
	if len(own) > 0 {
		o := overview{Title: "How both ways to a new member grow"}
		o.Header, o.Rows = own.table()
		own.charts(&o.Sheet)
		all = append(all, o)
	}
	if len(published) > 0 {
		o := overview{Title: "Logical initial sync and files, published and here", Notes: published.publishedNotes()}
		o.Header, o.Rows = published.publishedTable()
		published.publishedCharts(&o.Sheet)
		all = append(all, o)
	}
	if g := slices.Concat(own, published); len(g) > 0 {
		o := overview{Title: "What the seconds of a seed consist of", Notes: g.fixedNotes()}
		o.Header, o.Rows = g.partsTable()
		all = append(all, o)
	}
	return all
}

// seeded are the cases of new members: of the scenario's own matrix, and of
// published cells.
func (r *Report) seeded() (own, published growth) {
	for i := range r.Cases {
		c := &r.Cases[i]
		switch {
		case len(c.contender(seedTwoPass).Rounds) == 0 || len(c.contender(seedLogical).Rounds) == 0:
		case c.Published != nil:
			published = append(published, c)
		default:
			own = append(own, c)
		}
	}
	return own, published
}
