package job

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
)

// phaseCreating lies between the snapshot of the catalog and the first document.
const phaseCreating Phase = "creating"

// prepare takes a snapshot of the catalog, which gives the start position, or, in
// incremental mode, sets the position that was asked for.
func (j *Job) prepare(ctx context.Context, job state.Job) error {
	if job.Restarted {
		if err := j.clear(ctx); err != nil {
			return err
		}
	}
	if j.spec.Mode == ModeIncremental {
		return j.prepareIncremental(ctx)
	}
	snap, err := schema.TakeSnapshot(ctx, j.src, j.scope(), oplog.Changes(j.src))
	if err != nil {
		return err
	}
	mapped := make([]state.Mapped, len(snap.Collections))
	for i, c := range snap.Collections {
		mapped[i] = state.Mapped{Collection: c, Target: j.rules.Target(c.NS)}
	}
	if err := j.noneExists(ctx, mapped); err != nil {
		return err
	}
	if err := j.store.SaveCatalog(ctx, mapped); err != nil {
		return err
	}
	j.log.Info("snapshot taken", "position", snap.At, "collections", len(mapped))
	return j.savePhase(ctx, phaseCreating, append(positionFields(oplog.Position(snap.At, snap.At)), bson.E{Key: "start", Value: snap.At})...)
}

// clear removes what an earlier life of the job left in the target's database
// of millrace. Done again after a crash it does no harm.
func (j *Job) clear(ctx context.Context) error {
	if err := j.cat.Forget(ctx); err != nil {
		return err
	}
	if err := j.letters.Reset(ctx); err != nil {
		return err
	}
	if err := j.letters.Load(ctx, false); err != nil {
		return err
	}
	if err := j.store.Clear(ctx); err != nil {
		return err
	}
	return j.store.Save(ctx, bson.D{{Key: "restarted", Value: false}})
}

// noneExists makes sure that what exists on the target from now on is the job's
// own, where it is not to touch what does. The precheck did not know all names.
func (j *Job) noneExists(ctx context.Context, mapped []state.Mapped) error {
	if j.spec.OnExisting == ExistingMerge || j.spec.OnExisting == ExistingDrop {
		return nil
	}
	targets := make([]string, len(mapped))
	for i, c := range mapped {
		targets[i] = c.Target
	}
	have, err := j.cat.ListExisting(ctx, targets)
	if err != nil {
		return err
	}
	for ns := range have {
		return mongo.WithHint(fmt.Errorf("%s exists on the target", ns), "drop it, or choose --on-existing merge or --on-existing drop")
	}
	return nil
}

func (j *Job) prepareIncremental(ctx context.Context) error {
	at, err := mongo.ParseOpTime(j.spec.StartAt)
	if err != nil {
		return fmt.Errorf("--start-at: %w", err)
	}
	newest, err := j.newest(ctx)
	if err != nil {
		return err
	}
	names, err := schema.FindNames(ctx, j.src, j.dst, j.rules)
	if err != nil {
		return err
	}
	if err := j.store.SaveCatalog(ctx, mappedNames(names)); err != nil {
		return err
	}
	// What the target holds at that position is not known exactly, so up to
	// now it may be ahead.
	return j.savePhase(ctx, PhaseOverlap, append(positionFields(oplog.Position(at, at)),
		bson.E{Key: "start", Value: at}, bson.E{Key: "consistent", Value: newest})...)
}

// makeOnTarget creates one collection or view. Unless the target's own are kept,
// only this job can have made what is there.
func (j *Job) makeOnTarget(ctx context.Context, c schema.Collection, target string) error {
	if j.spec.OnExisting == ExistingMerge {
		return j.cat.Create(ctx, c, target, j.rules)
	}
	return j.cat.CreateOurs(ctx, c, target, j.rules)
}

// create makes the collections and views on the target. Nothing has been
// copied yet, so it may begin again after a crash.
func (j *Job) create(ctx context.Context) error {
	colls, err := j.store.LoadCatalog(ctx)
	if err != nil {
		return err
	}
	if j.spec.OnExisting == ExistingDrop {
		for _, c := range colls {
			if err := j.cat.Drop(ctx, c.Target); err != nil {
				return err
			}
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	var views []state.Mapped
	for _, c := range colls {
		if c.Type == schema.TypeView {
			views = append(views, c)
			continue
		}
		g.Go(func() error { return j.makeOnTarget(gctx, c.Collection, c.Target) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, c := range views { // in dependency order
		if err := j.makeOnTarget(ctx, c.Collection, c.Target); err != nil {
			return err
		}
	}
	if err := j.indexEarly(ctx, colls); err != nil {
		return err
	}
	// One wait for all: an election must not leave a collection to be made by
	// the way, without its options.
	if err := j.cat.WaitMajority(ctx); err != nil {
		return err
	}
	return j.savePhase(ctx, PhaseCopying)
}

func (j *Job) copyAll(ctx context.Context, job state.Job) error {
	colls, err := j.store.LoadCatalog(ctx)
	if err != nil {
		return err
	}
	if err := j.holdTTL(ctx); err != nil {
		return err
	}
	var tasks []copy.Task
	for _, c := range colls {
		if c.Type != schema.TypeView {
			tasks = append(tasks, j.task(c.Collection, c.Target))
		}
	}
	if err := j.runCopy(ctx, tasks, job.Start); err != nil {
		return err
	}
	set := []bson.E{}
	if j.src.Info.Kind == mongo.KindReplicaSet {
		newest, err := j.newest(ctx)
		if err != nil {
			return err
		}
		set = append(set, bson.E{Key: "consistent", Value: newest})
		j.log.Info("documents copied", "consistentAt", newest)
	}
	return j.savePhase(ctx, PhaseIndexing, set...)
}

// task is the copy of one collection into the namespace that holds its
// documents on the target.
func (j *Job) task(c schema.Collection, target string) copy.Task {
	// Also what only an earlier attempt can have written is replaced: it is the
	// same, or older, or somebody else's.
	return copy.Task{Source: c, Target: schema.Collection{NS: target, Type: c.Type}.DataNS(), OnExisting: copy.Replace}
}

func (j *Job) runCopy(ctx context.Context, tasks []copy.Task, after mongo.OpTime) error {
	eng := copy.New(j.src, j.dst, sliceStore{j.store}, copy.Options{
		Readers: j.spec.Readers, Writers: j.spec.Writers, AfterClusterTime: after, Log: j.log,
		Recreate: j.recreate, Widen: j.widen, Refused: j.copyRefused(after), Limit: j.limit, SourceGate: j.srcGate, TargetGate: j.dstGate,
	})
	j.progress.setCopy(eng)
	return eng.Run(ctx, tasks)
}

// recreate empties the target of a task that has to begin anew.
func (j *Job) recreate(ctx context.Context, t copy.Task) error {
	// The source's name may be another one by now.
	db, coll := mongo.SplitNS(t.Target)
	ns := db + "." + strings.TrimPrefix(coll, mongo.BucketsPrefix)
	if err := j.cat.Drop(ctx, ns); err != nil {
		return err
	}
	return j.cat.CreateOurs(ctx, t.Source, ns, j.rules)
}

// widen makes room in a capped collection of the target for all that the source's
// takes by now: its limits may have grown since it was listed, which the oplog
// tells later.
func (j *Job) widen(ctx context.Context, t copy.Task) error {
	if !j.dst.Info.Version.AtLeast(6, 0) { // nor can the source's have changed
		return nil
	}
	sourceDB, _ := mongo.SplitNS(t.Source.NS) // it cannot have left it
	reply, err := j.src.Command(ctx, sourceDB, bson.D{{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "info.uuid", Value: t.Source.UUID}}}})
	if err != nil {
		return fmt.Errorf("read options of %s: %w", t.Source.NS, err)
	}
	options, found := reply.Lookup("cursor", "firstBatch", "0", "options").DocumentOK()
	if !found {
		return nil
	}
	db, name := mongo.SplitNS(t.Target)
	specs, err := j.dst.Client.Database(db).ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil || len(specs) == 0 {
		return err
	}
	for _, l := range []struct{ option, command string }{{"size", "cappedSize"}, {"max", "cappedMax"}} {
		want, _ := options.Lookup(l.option).AsInt64OK() // max: 0 is none
		have, limited := specs[0].Options.Lookup(l.option).AsInt64OK()
		if !limited || want != 0 && want <= have {
			continue
		}
		term, err := j.dst.Change(ctx, db, bson.D{{Key: "collMod", Value: name}, {Key: l.command, Value: want}})
		if err == nil {
			err = j.store.SameTerm(term)
		}
		if err != nil {
			return fmt.Errorf("make room in %s on the target: %w", t.Target, err)
		}
	}
	return nil
}

// buildIndexes builds what need not wait for consistency, collections side by
// side, then lets the tail begin.
func (j *Job) buildIndexes(ctx context.Context) error {
	colls, err := j.store.LoadCatalog(ctx)
	if err != nil {
		return err
	}
	phase := schema.BeforeConsistent
	if j.src.Info.Kind != mongo.KindReplicaSet {
		phase = schema.Consistent
	}
	commands := schema.DefaultBuilds
	if load, _ := j.dstGate.Load(); load == pace.Low {
		commands = 1
	}
	var builds []schema.Build
	for _, c := range colls {
		if len(c.Indexes) > 0 && c.Type != schema.TypeView {
			builds = append(builds, schema.Build{NS: c.Target, Indexes: c.Indexes, Bytes: c.Bytes})
		}
	}
	if err := j.cat.BuildAll(ctx, builds, phase, commands); err != nil {
		return err
	}
	if j.src.Info.Kind != mongo.KindReplicaSet {
		return j.finishCopyOnly(ctx)
	}
	return j.savePhase(ctx, PhaseOverlap)
}

// finishCopyOnly ends the job of a standalone source, which has no oplog.
func (j *Job) finishCopyOnly(ctx context.Context) error {
	if err := j.decideAfterCopy(ctx); err != nil {
		return err
	}
	if err := j.cat.RestoreExpiries(ctx); err != nil {
		return err
	}
	if err := j.compareCatalogs(ctx); err != nil {
		return err
	}
	if err := j.savePhase(ctx, PhaseFinalized); err != nil {
		return err
	}
	return errFinished
}

// sliceStore is the copy engine's store in the job's checkpoint.
type sliceStore struct{ s state.Store }

func (s sliceStore) SameTerm(term int64) error { return s.s.SameTerm(term) }

func (s sliceStore) LoadSlices(ctx context.Context) ([]copy.SliceState, error) {
	raws, err := s.s.LoadSlices(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]copy.SliceState, len(raws))
	for i, r := range raws {
		if err := bson.Unmarshal(r, &out[i]); err != nil {
			return nil, fmt.Errorf("decode slice: %w", err)
		}
	}
	return out, nil
}

func (s sliceStore) SaveSlices(ctx context.Context, changed []copy.SliceState) error {
	out := make([]state.Slice, len(changed))
	for i, c := range changed {
		raw, err := bson.Marshal(c)
		if err != nil {
			return fmt.Errorf("encode slice: %w", err)
		}
		out[i] = state.Slice{ID: slicePrefix(c.Collection) + strconv.Itoa(c.N), State: raw}
	}
	return s.s.SaveSlices(ctx, out)
}

func slicePrefix(uuidHex string) string { return uuidHex + "/" }

func uuidHex(u bson.Binary) string { return hex.EncodeToString(u.Data) }
