package schema

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Building lists the collections of a source that the rules keep and on which it is
// building indexes.
func Building(ctx context.Context, c *mongo.Cluster, rules *transform.Set) ([]Collection, error) {
	colls, err := list(ctx, c, Scope{NS: rules.Match, DB: rules.MatchDB})
	if err != nil {
		return nil, fmt.Errorf("look for index builds under way: %w", err)
	}
	return slices.DeleteFunc(colls, func(c Collection) bool { return len(c.Building) == 0 }), nil
}

// addBuilding adds to a catalog what other servers of the deployment are building.
func addBuilding(colls, others []Collection) {
	for _, o := range others {
		at := slices.IndexFunc(colls, func(c Collection) bool { return c.NS == o.NS })
		if at < 0 {
			continue
		}
		c := &colls[at]
		for _, ix := range o.Building {
			if !slices.ContainsFunc(slices.Concat(c.Indexes, c.Building),
				func(have stream.Index) bool { return have.Name == ix.Name }) {
				c.Building = append(c.Building, ix)
			}
		}
	}
}

// BuildingNames are the index builds under way in a catalog whose indexes the target is to get,
// in order. They are named by the source's namespaces.
func BuildingNames(colls []Collection, rules *transform.Set) (out []IndexName, err error) {
	for _, c := range colls {
		if len(c.Building) == 0 || !rules.Match(c.NS) || rules.Route(c.NS).Skips.Has(stream.OpCreateIndexes) {
			continue
		}
		if c, _, err = Mapped(c, rules); err != nil {
			return nil, err
		}
		for _, ix := range c.Building {
			out = append(out, IndexName{NS: c.NS, Name: ix.Name})
		}
	}
	slices.SortFunc(out, func(a, b IndexName) int { return cmp.Or(cmp.Compare(a.NS, b.NS), cmp.Compare(a.Name, b.Name)) })
	return slices.Compact(out), nil
}

// mostNamed bounds the indexes that a text names.
const mostNamed = 10

// NameAll names indexes in a text: "a_1 of db.c, b_1 of db.c".
func NameAll(all []IndexName) string {
	var out []string
	for _, one := range all[:min(len(all), mostNamed)] {
		out = append(out, one.Name+" of "+one.NS)
	}
	if more := len(all) - mostNamed; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}
