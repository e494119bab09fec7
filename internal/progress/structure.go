package progress

import (
	"slices"

	"github.com/millrace/millrace/internal/schema"
)

// Structure is the progress of a job that makes collections, views and indexes,
// and copies no documents.
type Structure struct {
	// Collections are those that are there as they are to be, time series among them.
	Collections      int `json:"collections"`
	CollectionsTotal int `json:"collectionsTotal"`
	Views            int `json:"views"`
	ViewsTotal       int `json:"viewsTotal"`
	// Indexes leave out those of _id.
	Indexes      int `json:"indexes"`
	IndexesTotal int `json:"indexesTotal"`
	// Sharded are the collections that are sharded on the target.
	Sharded int    `json:"sharded"`
	List    []Made `json:"list"`
}

// Made is one collection or view of a structure.
type Made struct {
	Source  string      `json:"source"`
	Target  string      `json:"target"`
	Type    schema.Type `json:"type"`
	Indexes int         `json:"indexes"`
	// ShardKey is that on the target, empty where it is not sharded.
	ShardKey string `json:"shardKey,omitempty"`
	// Made says that it is there, Done that its indexes are, too.
	Made bool `json:"made"`
	Done bool `json:"done"`
}

// Structure begins to show what is to be made.
func (p *Progress) Structure(all []Made) {
	p.set(func() {
		p.st.Structure = &Structure{List: all}
		p.st.Structure.count()
	})
}

// Made notes that a collection or view of the target is there.
func (p *Progress) Made(target string) {
	p.change(target, func(m *Made) {
		m.Made = true
		m.Done = m.Indexes == 0
	})
}

// Indexed notes that all indexes of a collection of the target are there.
func (p *Progress) Indexed(target string) { p.change(target, func(m *Made) { m.Done = true }) }

// Sharded notes by which key a collection is sharded.
func (p *Progress) Sharded(target, key string) {
	p.change(target, func(m *Made) { m.ShardKey = key })
}

// change changes one of a structure; other jobs show none.
func (p *Progress) change(target string, f func(*Made)) {
	p.set(func() {
		s := p.st.Structure
		if s == nil {
			return
		}
		i := slices.IndexFunc(s.List, func(m Made) bool { return m.Target == target })
		if i < 0 {
			return
		}
		f(&s.List[i])
		s.count()
	})
}

// count adds up the list.
func (s *Structure) count() {
	*s = Structure{List: s.List}
	add := func(n, done *int, by int, is bool) {
		if *n += by; is {
			*done += by
		}
	}
	for _, m := range s.List {
		if m.Type == schema.TypeView {
			add(&s.ViewsTotal, &s.Views, 1, m.Made)
			continue
		}
		add(&s.CollectionsTotal, &s.Collections, 1, m.Made)
		add(&s.IndexesTotal, &s.Indexes, m.Indexes, m.Done)
		if m.ShardKey != "" {
			s.Sharded++
		}
	}
}

// clone is a copy that nobody changes.
func (s *Structure) clone() *Structure {
	if s == nil {
		return nil
	}
	c := *s
	c.List = slices.Clone(s.List)
	return &c
}
