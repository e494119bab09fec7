package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

func viewRefs(ns string, options bson.Raw) ([]string, error) {
	db, _ := mongo.SplitNS(ns)
	var refs []string
	_, err := mapView(db, options, func(_, ref string) (string, error) {
		refs = append(refs, ref)
		return ref, nil
	})
	return refs, err
}

// MapView renames the collections in a view's definition as on the target. They must be in the view's
// database there.
func MapView(ns string, options bson.Raw, rules *transform.Set) (bson.Raw, error) {
	if !rules.Renames() {
		return options, nil
	}
	db, _ := mongo.SplitNS(ns)
	targetDB, _ := mongo.SplitNS(rules.Target(ns))
	return mapView(db, options, func(refDB, ref string) (string, error) {
		to := rules.Target(ref)
		if toDB, _ := mongo.SplitNS(to); refDB == db && toDB != targetDB {
			return "", mongo.WithHint(fmt.Errorf("view %s would be in database %s, but what it reads (%s) would become %s", ns,
				targetDB, ref, to),
				"a view cannot read another database: rename both into the same one, or exclude the view")
		}
		return to, nil
	})
}

type mapper func(refDB, ref string) (string, error)

// CheckRules returns an error with all names that collide or that a server refuses, and all views
// separated from what they read.
func CheckRules(colls []Collection, rules *transform.Set) error {
	var names []string
	var errs []error
	for _, c := range colls {
		names = append(names, c.NS)
		if c.Type == TypeView {
			_, err := MapView(c.NS, c.Options, rules)
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, rules.Collisions(names))...)
}

func mapView(db string, options bson.Raw, f mapper) (bson.Raw, error) {
	return edit(options, func(key string, v bson.RawValue) (bson.RawValue, error) {
		switch key {
		case "viewOn":
			return mapName(db, v, f)
		case "pipeline":
			return mapPipeline(db, v, f)
		}
		return v, nil
	})
}

func mapName(db string, v bson.RawValue, f mapper) (bson.RawValue, error) {
	switch v.Type {
	case bson.TypeString:
		to, err := f(db, db+"."+v.StringValue())
		if err != nil {
			return v, err
		}
		_, coll := mongo.SplitNS(to)
		return rawValue(coll), nil
	case bson.TypeEmbeddedDocument:
		other, coll := str(v.Document(), "db"), str(v.Document(), "coll")
		if other == "" || coll == "" {
			return v, nil
		}
		to, err := f(other, other+"."+coll)
		if err != nil {
			return v, err
		}
		toDB, toColl := mongo.SplitNS(to)
		return editValue(v, func(key string, v bson.RawValue) (bson.RawValue, error) {
			switch key {
			case "db":
				v = rawValue(toDB)
			case "coll":
				v = rawValue(toColl)
			}
			return v, nil
		})
	}
	return v, nil
}

func mapPipeline(db string, v bson.RawValue, f mapper) (bson.RawValue, error) {
	if v.Type != bson.TypeArray {
		return v, nil
	}
	return editValue(v, func(_ string, stage bson.RawValue) (bson.RawValue, error) {
		return editValue(stage, func(name string, arg bson.RawValue) (bson.RawValue,
			error) {
			return mapStage(db, name, arg, f)
		})
	})
}

func mapStage(db, name string, arg bson.RawValue, f mapper) (bson.RawValue, error) {
	if name == "$unionWith" && arg.Type == bson.TypeString {
		return mapName(db, arg, f)
	}
	return editValue(arg, func(key string, v bson.RawValue) (bson.RawValue, error) {
		switch {
		case name == "$lookup" && key == "from", name == "$graphLookup" && key == "from",
			name == "$unionWith" && key == "coll":
			return mapName(db, v, f)
		case name == "$facet", (name == "$lookup" || name == "$unionWith") && key == "pipeline":
			return mapPipeline(db, v, f)
		}
		return v, nil
	})
}

// inOrder sorts by type and name, but each view comes after what it reads.
func inOrder(colls []Collection) ([]Collection, error) {
	rank := map[Type]int{TypeCollection: 0, TypeTimeSeries: 1, TypeView: 2}
	slices.SortFunc(colls, func(a, b Collection) int {
		if d := rank[a.Type] - rank[b.Type]; d != 0 {
			return d
		}
		return strings.Compare(a.NS, b.NS)
	})
	first := slices.IndexFunc(colls, func(c Collection) bool { return c.Type == TypeView })
	if first < 0 {
		return colls, nil
	}
	out := slices.Clone(colls[:first])
	views := map[string]Collection{}
	for _, c := range colls[first:] {
		views[c.NS] = c
	}
	var visit func(ns string) error
	visit = func(ns string) error {
		v, ok := views[ns]
		if !ok {
			return nil // no view, or placed already
		}
		delete(views, ns)
		refs, err := viewRefs(ns, v.Options)
		if err != nil {
			return fmt.Errorf("definition of view %s: %w", ns, err)
		}
		for _, ref := range refs {
			if err := visit(ref); err != nil {
				return err
			}
		}
		out = append(out, v)
		return nil
	}
	for _, c := range colls[first:] {
		if err := visit(c.NS); err != nil {
			return nil, err
		}
	}
	return out, nil
}
