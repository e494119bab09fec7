package precheck

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// Capture is how the job reads the source.
type Capture struct {
	By  state.Capture
	Why string     // why oplogs cannot be read, if nobody chose change streams; else ""
	Via origin.Via // as chosen
}

const checkCapture = "capture"

// Unreported lists what change streams do not report of what users do. See docs/reference/capture.md.
func Unreported(of mongo.Version, s changestream.Support) []string {
	list := []string{"writes by applyOps"}
	if hidesExpiry(of) {
		list = append(list, "expiry in clustered collections")
	}
	if !s.System {
		list = append(list, "time series", "system.js")
	}
	if !s.Copies {
		list = append(list, "documents of convertToCapped and cloneCollectionAsCapped")
	}
	if !s.Expanded {
		list = append(list, "created collections and their options", "created, changed and dropped indexes", "collMod",
			"views")
	}
	return list
}

// hidesExpiry reports servers whose change streams lack what expires in clustered collections. 6.0.5 was seen to
// report it; the manual of newer ones says that they do not.
func hidesExpiry(v mongo.Version) bool { return v.AtLeast(6, 1) }

type capturing struct{ *planner }

// possible checks that the source can be read as chosen, before anything else of it is read.
func (p capturing) possible() {
	src, via := p.Source.Info, p.Capture.Via
	if via != "" && via != origin.ViaAuto && src.Kind != mongo.KindSharded {
		p.add(Fail, checkCapture, "leave --via out", "--via %s is for a sharded source, and the source is a %s", via,
			src.Kind)
	}
	if p.Streamed == nil || p.Mode == state.ModeStructure {
		return
	}
	switch {
	case src.Kind == mongo.KindStandalone:
		p.add(Fail, checkCapture, "leave --capture out", "a standalone server has no change streams")
	case src.Kind == mongo.KindSharded && !src.Version.AtLeast(6, 0):
		p.add(Fail, checkCapture, "upgrade it to 6.0, or use --capture oplog",
			"the change streams of a sharded cluster of MongoDB %s do not tell moved collections from dropped ones", src.Version)
	}
	if p.Rules.SkipsAny(stream.OpTTL) {
		p.add(Fail, checkCapture, "use --capture oplog, or skip delete instead of ttl, which leaves out all deletions",
			"--skip …=ttl is not possible with change streams, which do not tell expiry from users' deletions")
	}
}

// reports checks what the change streams report of the collections of the plan.
func (p capturing) reports(ctx context.Context) error {
	if p.Mode == state.ModeStructure || p.Source.Info.Kind == mongo.KindStandalone {
		return nil
	}
	if p.Streamed == nil {
		what := "reads the source's oplog"
		if p.Shards != nil {
			what = "reads the oplog of each shard"
		}
		p.ok(checkCapture, "%s", what)
		return nil
	}
	support, err := p.Streamed.Support(ctx)
	switch {
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		p.add(Fail, checkCapture, p.rolesHint(), "the source's change stream cannot be opened: %s", mongo.Brief(err))
		return nil
	case err != nil:
		return err
	}
	colls, err := p.seen.collections()
	if err != nil {
		return err
	}
	p.unreported(colls, support)
	p.judging(support)
	why := "as chosen"
	if p.Capture.Why != "" {
		why = p.Capture.Why
	}
	hint := "compare with millrace verify after finalize"
	if p.Capture.Why != "" {
		hint += "; for the oplog, grant what docs/reference/privileges.md lists"
	}
	p.add(Warn, checkCapture, hint, "reads change streams (%s), which do not report %s", why,
		strings.Join(Unreported(p.Source.Info.Version, support), ", "))
	return nil
}

func (p capturing) rolesHint() string {
	return "grant the source's user the role readAnyDatabase, which includes changeStream on all databases"
}

// judging rejects rules about operations where the stream does not report each exactly: documents are read later, which
// joins their events, and no rename says whether it dropped another collection.
func (p capturing) judging(s changestream.Support) {
	if v := p.Source.Info.Version; p.Rules.JudgeOperations() && !(s.Raw && s.Expanded) {
		p.add(Fail, checkCapture, "use --capture oplog, or leave them out", "--skip, --soft-delete, --history and "+
			"--on-existing merge need to know more than the change streams of MongoDB %s report", v)
	}
}

// unreported rejects collections whose writes the change streams do not contain.
func (p capturing) unreported(colls []schema.Collection, s changestream.Support) {
	var series, expiring []string
	for _, c := range colls {
		switch {
		case c.Type == schema.TypeTimeSeries && !s.System:
			series = append(series, c.NS)
		case c.Type == schema.TypeCollection && c.Clustered() && len(expiry.Of(c.Options)) > 0 &&
			hidesExpiry(p.Source.Info.Version):
			expiring = append(expiring, c.NS)
		}
	}
	reject := func(what string, names []string) {
		if len(names) > 0 {
			p.add(Fail, checkCapture, "exclude them, or use --capture oplog", "change streams do not report %s: %s", what,
				fmt.Sprintf("%d collections, %s", len(names), some(names, ", ")))
		}
	}
	reject("writes to time series", series)
	reject("expiry in clustered collections", expiring)
}
