package job

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/schema"
)

// What a job does, found by taking each action away (test/access).

// readActions are needed on what holds a collection's documents on the source.
func readActions() []string { return []string{"find", "listIndexes", "collStats"} }

// writeActions are needed on a collection of the target, for what it may become
// too. A view needs the creation, change and drop alone.
func writeActions() []string {
	return []string{"find", "insert", "update", "remove", "bypassDocumentValidation", "createCollection", "convertToCapped",
		"collMod", "dropCollection", "createIndex", "dropIndex", "listIndexes", "collStats"}
}

func viewActions() []string { return []string{"createCollection", "collMod", "dropCollection"} }

// seriesActions are needed on a time-series collection, bucketActions on its
// buckets.
func seriesActions() []string { return append(viewActions(), "dropIndex") }

func bucketActions() []string {
	return []string{"find", "insert", "update", "remove", "bypassDocumentValidation", "createIndex", "listIndexes", "collStats"}
}

func systemJSActions() []string {
	return []string{"find", "insert", "update", "remove", "bypassDocumentValidation", "listIndexes", "collStats"}
}

// The built-in roles that suffice (docs/operations.md).
const (
	sourceRoles = "readAnyDatabase and clusterMonitor"
	targetRoles = "readWriteAnyDatabase, restore and clusterMonitor"
)

func rolesHint(side, roles string) string {
	return fmt.Sprintf("grant the %s's user the roles %s, or exactly the actions that docs/operations.md lists", side, roles)
}

// needs collects what a user must be allowed to do, and is not.
type needs struct {
	have  grants
	lacks []string
	seen  map[string]bool
}

func (n *needs) on(ns string, actions ...string) {
	missing := n.have.missing(ns, actions)
	if len(missing) == 0 || n.seen[ns] {
		return
	}
	n.seen[ns] = true
	n.lacks = append(n.lacks, strings.Join(missing, ", ")+" on "+ns)
}

// text names the first of what is missing.
func (n *needs) text() string {
	const most = 4
	shown := n.lacks[:min(most, len(n.lacks))]
	text := "the user lacks " + strings.Join(shown, "; ")
	if more := len(n.lacks) - len(shown); more > 0 {
		text += fmt.Sprintf("; and more on %d other resources", more)
	}
	return text
}

// probe is the name of a collection that might be created while the job runs.
const probe = "millrace-probe"

// privileges checks that the users may do what the job will do.
func (p *planner) privileges(ctx context.Context) error {
	if err := p.sourcePrivileges(ctx); err != nil {
		return err
	}
	return p.targetPrivileges(ctx)
}

func (p *planner) sourcePrivileges(ctx context.Context) error {
	have, err := grantsOf(ctx, p.j.src)
	if err != nil {
		return err
	}
	n := &needs{have: have, seen: map[string]bool{}}
	// Collections are copied by UUID. Without listDatabases the server leaves
	// out databases that the user may not read, and nobody would notice.
	n.on(onCluster, "useUUID", "listDatabases")
	if p.j.src.Info.Kind == mongo.KindReplicaSet {
		n.on("local.oplog.rs", "find")
	}
	later := &needs{have: have, seen: map[string]bool{}}
	for _, c := range p.plan.Collections {
		db, _ := mongo.SplitNS(c.Source)
		n.on(db+"."+probe, "listCollections")
		if c.Type != string(schema.TypeView) {
			n.on(dataNS(c.Source, c.Type), readActions()...)
		}
		if p.j.keep(db + "." + probe) {
			later.on(db+"."+probe, readActions()...)
			p.laterSeries(later, p.j.src, db, readActions())
		}
	}
	p.judge("source", sourceRoles, n, later)
	return nil
}

func (p *planner) targetPrivileges(ctx context.Context) error {
	have, err := grantsOf(ctx, p.j.dst)
	if err != nil {
		return err
	}
	n := &needs{have: have, seen: map[string]bool{}}
	n.on(mongo.StateDB+".jobs", "find", "insert", "update", "remove")
	later := &needs{have: have, seen: map[string]bool{}}
	for _, c := range p.plan.Collections {
		db, name := mongo.SplitNS(c.Target)
		n.on(db+"."+probe, "listCollections")
		switch {
		case c.Type == string(schema.TypeView):
			n.on(c.Target, viewActions()...)
		case c.Type == string(schema.TypeTimeSeries):
			n.on(c.Target, seriesActions()...)
			n.on(dataNS(c.Target, c.Type), bucketActions()...)
		case name == "system.js":
			n.on(c.Target, systemJSActions()...)
		default:
			n.on(c.Target, writeActions()...)
		}
		if src, ok := p.j.rules.Source(db + "." + probe); ok && p.j.keep(src) {
			later.on(db+"."+probe, writeActions()...)
			p.laterSeries(later, p.j.dst, db, bucketActions())
		}
	}
	p.judge("target", targetRoles, n, later)
	return nil
}

// laterSeries looks at a time-series collection that might be created.
func (p *planner) laterSeries(later *needs, c *mongo.Cluster, db string, actions []string) {
	if p.j.src.Info.Version.AtLeast(5, 0) && c.Info.Version.AtLeast(5, 0) {
		later.on(db+"."+mongo.BucketsPrefix+probe, actions...)
	}
}

// judge turns what is missing into checks: for what there is a failure, for
// what there may be a warning.
func (p *planner) judge(side, roles string, now, later *needs) {
	switch name := side + " privileges"; {
	case len(now.lacks) > 0:
		p.add(precheck.Fail, name, rolesHint(side, roles), "%s", now.text())
	case len(later.lacks) > 0:
		p.add(precheck.Warn, name, rolesHint(side, roles), "enough for what there is; a collection created later could stop the job: %s", later.text())
	default:
		p.ok(name, "sufficient")
	}
}

// unauthorized notes that a side refused even to be looked at.
func (p *planner) unauthorized(err error) {
	side, roles := "source", sourceRoles
	if strings.Contains(err.Error(), p.j.dst.Address()) || strings.Contains(err.Error(), "job "+p.j.id) {
		side, roles = "target", targetRoles
	}
	text, _, _ := strings.Cut(err.Error(), " to execute command")
	p.add(precheck.Fail, side+" privileges", rolesHint(side, roles), "%s", text)
}

// dataNS is the namespace that holds a collection's documents.
func dataNS(ns, kind string) string {
	return schema.Collection{NS: ns, Type: schema.Type(kind)}.DataNS()
}
