package console

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

// choice selects and renames the collections of a new job.
type choice struct {
	// Some keeps only what Include matches, also if it is empty. Otherwise all is kept but for Exclude.
	Some                     bool
	Include, Exclude, Rename []string
}

// later is a name that no collection has. It stands for collections that are made later.
const later = "millrace-made-later"

func (c *choice) rules() (*transform.Set, error) {
	return transform.New(transform.Config{Include: c.Include, Exclude: c.Exclude, Rename: c.Rename})
}

func (c *choice) look() func(ns string) (kept bool, target string) {
	s, err := c.rules()
	return func(ns string) (bool, string) {
		if err != nil {
			return false, ns
		}
		return (!c.Some || len(c.Include) > 0) && s.Match(ns), s.Target(ns)
	}
}

func (c *choice) kept(ns string) bool {
	kept, _ := c.look()(ns)
	return kept
}

func (c *choice) target(ns string) string {
	_, to := c.look()(ns)
	return to
}

func (c *choice) toggle(ns string, on bool) error {
	exact := transform.Literal(ns)
	if !on {
		if c.Include = without(c.Include, exact); c.kept(ns) {
			c.Exclude = append(c.Exclude, exact)
		}
		return nil
	}
	if c.Exclude = without(c.Exclude, exact); !c.kept(ns) && c.Some {
		c.Include = with(c.Include, exact)
	}
	if !c.kept(ns) {
		c.Include = without(c.Include, exact)
		return fmt.Errorf("%s stays out: a pattern of exclude matches it", ns)
	}
	return nil
}

func (c *choice) toggleDB(db string, on bool) error {
	all, probe := transform.Literal(db)+".*", db+"."+later
	mine := func(pattern string) bool {
		return pattern == all || pattern == transform.Literal(db) || strings.HasPrefix(pattern, transform.Literal(db)+".") &&
			!wild(pattern)
	}
	c.Include, c.Exclude = slices.DeleteFunc(slices.Clone(c.Include), mine),
		slices.DeleteFunc(slices.Clone(c.Exclude), mine)
	if !on {
		if c.kept(probe) {
			c.Exclude = append(c.Exclude, all)
		}
		return nil
	}
	if !c.kept(probe) && c.Some {
		c.Include = with(c.Include, all)
	}
	if !c.kept(probe) {
		return fmt.Errorf("database %s stays out: a pattern of exclude matches it", db)
	}
	return nil
}

func wild(pattern string) bool {
	return strings.ContainsAny(regexp.MustCompile(`(?s)\\.`).ReplaceAllString(pattern, ""), "*?")
}

// rename renames a collection, or a database, which has no dot, on the target. "" undoes that. The new name of a
// collection may leave out the database.
func (c *choice) rename(from, to string) error {
	exact := transform.Literal(from)
	was := c.Rename
	c.Rename = slices.DeleteFunc(slices.Clone(c.Rename), func(r string) bool { return strings.HasPrefix(r, exact+"=") })
	if to = strings.TrimSpace(to); to == "" {
		return nil
	}
	if strings.Contains(from, ".") && !strings.Contains(to, ".") {
		db, _ := mongo.SplitNS(c.target(from))
		to = db + "." + to
	}
	if to == from && c.target(from) == from {
		return nil
	}
	c.Rename = append(c.Rename, exact+"="+transform.Literal(to))
	if _, err := c.rules(); err != nil {
		c.Rename = was
		return err
	}
	return nil
}

func (c *choice) add(include, exclude string) error {
	if include = strings.TrimSpace(include); include != "" {
		if _, err := transform.New(transform.Config{Include: []string{include}}); err != nil {
			return err
		}
		if !c.Some {
			return errors.New("everything is chosen already: begin with nothing to choose by patterns")
		}
		c.Include = with(c.Include, include)
	}
	if exclude = strings.TrimSpace(exclude); exclude != "" {
		if _, err := transform.New(transform.Config{Exclude: []string{exclude}}); err != nil {
			return err
		}
		c.Exclude = with(c.Exclude, exclude)
	}
	return nil
}

func with(list []string, one string) []string {
	if slices.Contains(list, one) {
		return list
	}
	return append(slices.Clone(list), one)
}

func without(list []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == one })
}
