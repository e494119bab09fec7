package bench

import "slices"

// overview is a table over several cases.
type overview struct {
	title  string
	header []string
	rows   [][]string
	notes  []string
	charts []drawing
}

// overviews are those of a report, none where it has no such cases.
func (r *Report) overviews() ([]overview, error) {
	all, err := r.seedOverviews()
	if err != nil {
		return nil, err
	}
	if c := r.chaining(); len(c) > 0 {
		header, rows := c.table()
		all = append(all, overview{title: "Chaining off against on, beside what was published", header: header, rows: rows})
	}
	return all, nil
}

// seedOverviews are those of new members.
func (r *Report) seedOverviews() (all []overview, err error) {
	own, published := r.seeded()
	if len(own) > 0 {
		o := overview{title: "How both ways to a new member grow"}
		o.header, o.rows = own.table()
		if o.charts, err = own.charts(); err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	if len(published) > 0 {
		o := overview{title: "Logical initial sync and files, published and here", notes: published.publishedNotes()}
		o.header, o.rows = published.publishedTable()
		if o.charts, err = published.publishedCharts(); err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	if g := slices.Concat(own, published); len(g) > 0 {
		o := overview{title: "What the seconds of a seed consist of", notes: g.fixedNotes()}
		o.header, o.rows = g.partsTable()
		all = append(all, o)
	}
	return all, nil
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
