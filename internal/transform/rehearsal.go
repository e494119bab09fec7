package transform

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/mongo"
)

// Effect is the effect of one rule on the collections of a source, and on sampled documents.
type Effect struct {
	Kind string `json:"kind"` // filter, fields, skip or soft-delete
	Rule string `json:"rule"`
	// Collections are those for which the rule is the first that matches.
	Collections int   `json:"collections"`
	Docs        int64 `json:"docs"` // tried
	// Kept by a filter; Changed by fields, or Failed there; Marked with the field of a soft-delete.
	Kept    int64 `json:"kept"`
	Changed int64 `json:"changed"`
	Failed  int64 `json:"failed"`
	Marked  int64 `json:"marked,omitempty"`
	// Why counts the failed documents by their reasons.
	Why []Reason `json:"why,omitempty"`
	// Parts are the single rules of fields, each as if it were alone.
	Parts []PartEffect `json:"parts,omitempty"`
	// Skipped are the operations of a skip.
	Skipped []string `json:"skipped,omitempty"`
}

// Reason is why documents cannot be mapped.
type Reason struct {
	Text string `json:"text"`
	Docs int64  `json:"docs"`
}

// PartEffect is the effect of a single rule of fields, such as a mask.
type PartEffect struct {
	Rule    string `json:"rule"`
	Changed int64  `json:"changed"`
	Failed  int64  `json:"failed"`
}

// Rehearsal tries rules on documents and counts. It is not safe for concurrent use.
type Rehearsal struct {
	rules   *Set
	filters []*Effect
	maps    []*Effect
	skips   []*Effect
	marks   []*Effect
	parts   [][]fields.Part
	why     map[*Effect]map[string]int64
	out     []byte
}

func Rehearse(s *Set) (*Rehearsal, error) {
	r := &Rehearsal{rules: s, why: map[*Effect]map[string]int64{}}
	if s == nil {
		return r, nil
	}
	for i := range s.filters {
		r.filters = append(r.filters, &Effect{Kind: "filter", Rule: s.filters[i].String()})
	}
	for i := range s.mappings {
		e := &Effect{Kind: "fields", Rule: s.mappings[i].String()}
		parts, err := s.mappings[i].is.parts()
		if err != nil {
			return nil, fmt.Errorf("take apart the rules of %s: %w", s.mappings[i].pattern, err)
		}
		for _, p := range parts {
			e.Parts = append(e.Parts, PartEffect{Rule: p.Rule})
		}
		r.maps, r.parts = append(r.maps, e), append(r.parts, parts)
	}
	for i := range s.skips {
		r.skips = append(r.skips,
			&Effect{Kind: "skip", Rule: s.skips[i].String(), Skipped: strings.Split(s.skips[i].text, ",")})
	}
	for i := range s.softDeletes {
		r.marks = append(r.marks, &Effect{Kind: "soft-delete", Rule: s.softDeletes[i].String()})
	}
	return r, nil
}

// of returns the effects of the rules for a namespace, nil for none.
func (r *Rehearsal) of(ns string) (filter, mapping, skip, soft *Effect) {
	at := func(list []*Effect, i int) *Effect {
		if i < 0 {
			return nil
		}
		return list[i]
	}
	to := r.rules.Route(ns)
	return at(r.filters, to.filter), at(r.maps, to.fields), at(r.skips, to.skip), at(r.marks, to.softDelete)
}

// Collection counts a collection, and reports whether its documents matter.
func (r *Rehearsal) Collection(ns string) bool {
	filter, mapping, skip, soft := r.of(ns)
	for _, e := range []*Effect{filter, mapping, skip, soft} {
		if e != nil {
			e.Collections++
		}
	}
	return filter != nil || mapping != nil || soft != nil
}

// Document tries the rules on a document of a namespace.
func (r *Rehearsal) Document(ns string, doc bson.Raw) error {
	filter, mapping, _, soft := r.of(ns)
	to := r.rules.Route(ns)
	if filter != nil {
		filter.Docs++
		if !to.Filter.Match(doc) {
			return nil
		}
		filter.Kept++
	}
	if mapping != nil {
		if err := r.mapped(to, mapping, doc); err != nil {
			return err
		}
	}
	if soft != nil {
		soft.Docs++
		if _, has := bsonraw.Field(doc, to.SoftDelete); has {
			soft.Marked++
		}
	}
	return nil
}

func (r *Rehearsal) mapped(to *Route, e *Effect, doc bson.Raw) error {
	e.Docs++
	meta := fields.Meta{Namespace: to.Source, Operation: OperationCopy}
	try := func(m *fields.Map) (changed bool, why string, err error) {
		r.out, err = m.Apply(r.out[:0], doc, meta)
		if misfit, ok := errors.AsType[*fields.Misfit](err); ok {
			return false, misfit.Error(), nil
		}
		return !bytes.Equal(r.out, doc), "", mongo.Wrap(err, "try the rules for fields on %s", to.Source)
	}
	changed, why, err := try(to.Fields)
	if err != nil {
		return err
	}
	switch {
	case why != "":
		e.Failed++
		if r.why[e] == nil {
			r.why[e] = map[string]int64{}
		}
		r.why[e][why]++
	case changed:
		e.Changed++
	}
	for n, p := range r.parts[to.fields] {
		changed, why, err := try(p.Map)
		if err != nil {
			return err
		}
		if why != "" {
			e.Parts[n].Failed++
		} else if changed {
			e.Parts[n].Changed++
		}
	}
	return nil
}

const mostReasons = 10

func (r *Rehearsal) Effects() (out []Effect) {
	for _, e := range slices.Concat(r.filters, r.maps, r.skips, r.marks) {
		one := *e
		for text, docs := range r.why[e] {
			one.Why = append(one.Why, Reason{text, docs})
		}
		slices.SortFunc(one.Why, func(a, b Reason) int {
			return cmp.Or(cmp.Compare(b.Docs, a.Docs),
				strings.Compare(a.Text, b.Text))
		})
		one.Why = one.Why[:min(len(one.Why), mostReasons)]
		out = append(out, one)
	}
	return out
}
