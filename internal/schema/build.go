package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Phase says how far the target is.
type Phase int

const (
	// BeforeConsistent: the data may be ahead of or behind itself, so indexes
	// that refuse documents are held back.
	BeforeConsistent Phase = iota
	// Consistent: the data is that of one moment.
	Consistent
)

// BuildIndexes builds all given indexes of a collection of the target, in one
// command or, if it is large, in a few at once, and waits for them. In phase
// BeforeConsistent unique indexes are recorded as held back instead, and so are
// all of a command when a document refuses one of them: it may be ahead of the
// source's next change, which drops the index. Expiry is held back always. Indexes
// that exist already are no error. targetNS names a time-series collection by its
// own name or by that of its buckets; the specifications are those of the
// buckets. A missing collection is an error (see IsGone), never created by the way.
func (t *Target) BuildIndexes(ctx context.Context, targetNS string, idx []stream.Index, p Phase) error {
	return t.build(ctx, Build{NS: targetNS, Indexes: idx}, p, mostParts)
}

func (t *Target) build(ctx context.Context, b Build, p Phase, commands int) error {
	if len(b.Indexes) == 0 {
		return nil
	}
	dataNS, all, err := t.planAll(ctx, b, p)
	if err != nil {
		return fmt.Errorf("build indexes of %s: %w", b.NS, err)
	}
	var held []HeldSetting
	var now []planned
	for _, x := range all {
		held = append(held, x.HeldSetting)
		if !x.Unbuilt {
			now = append(now, x)
		}
	}
	if err := t.hold(ctx, held...); err != nil {
		return err
	}
	return t.inParts(ctx, dataNS, b, now, commands, func(held []HeldSetting, specs []bson.Raw) error {
		err := t.createIndexes(ctx, dataNS, specs)
		if p == Consistent || !mongo.Unindexable(err) {
			return err
		}
		t.log.Info("documents do not fit the indexes yet: they are built when the target is consistent", "ns", dataNS, "indexes", names(specs), "reason", err)
		for i := range held {
			held[i].Unbuilt = true
		}
		return t.hold(ctx, held...)
	})
}

// planned is an index with what is kept of it.
type planned struct {
	HeldSetting
	spec bson.Raw // to build
}

// planAll decides about all indexes of a build, and finds the collection that
// they belong to.
func (t *Target) planAll(ctx context.Context, b Build, p Phase) (dataNS string, all []planned, err error) {
	dataNS, ns, err := t.locate(ctx, b.NS)
	if err != nil {
		return "", nil, err
	}
	for _, ix := range b.Indexes {
		h, spec, err := t.plan(ns, ix, p)
		if err != nil {
			return "", nil, err
		}
		all = append(all, planned{h, spec})
	}
	return dataNS, all, nil
}

// errGone is the absence of a collection on the target.
type errGone struct{ ns string }

func (e errGone) Error() string { return e.ns + " does not exist on the target" }

// IsGone reports that a collection was not found on the target.
func IsGone(err error) bool {
	var gone errGone
	return errors.As(err, &gone)
}

// locate finds the collection that holds the documents of a namespace, and the
// namespace's own name.
func (t *Target) locate(ctx context.Context, targetNS string) (dataNS, ns string, err error) {
	db, name := mongo.SplitNS(targetNS)
	ns = db + "." + strings.TrimPrefix(name, mongo.BucketsPrefix)
	coll, ok, err := t.find(ctx, ns)
	switch {
	case err != nil:
		return "", "", err
	case !ok:
		return "", "", errGone{ns}
	case coll.Type == TypeView:
		return "", "", fmt.Errorf("%s is a view on the target", ns)
	}
	return coll.DataNS(), ns, nil
}

// plan decides what of an index is built now and what is held back.
func (t *Target) plan(ns string, ix stream.Index, p Phase) (HeldSetting, bson.Raw, error) {
	spec, expire, err := cleanIndex(ix)
	if err != nil {
		return HeldSetting{}, nil, err
	}
	gaps := Unsupported(Collection{NS: ns, Indexes: []stream.Index{{Name: ix.Name, Spec: ix.Spec}}}, t.c.Info.Version)
	if len(gaps) > 0 {
		return HeldSetting{}, nil, mongo.WithHint(errors.New(strings.Join(gaps, "; ")), "drop the index on the source, or exclude the collection")
	}
	h := HeldSetting{NS: ns, Index: ix.Name, Expire: expire, Spec: ix.Spec}
	h.Unbuilt = p == BeforeConsistent && uniqueLike(ix.Spec)
	if expire != nil && !convertsTTL(t.c.Info.Version) {
		n, _ := seconds(*expire)
		spec, err = with(spec, "expireAfterSeconds", heldExpiry(n))
	}
	return h, spec, err
}

// IndexConflict says that documents of the target have a key in common that a
// unique index does not allow.
type IndexConflict struct {
	NS    string     // of the documents
	Specs []bson.Raw // of all indexes that were to be built
	Err   error      // the server's
}

// Error is the server's, with the namespace and the indexes' names.
func (c *IndexConflict) Error() string { return c.Err.Error() }

// Unwrap gives the server's error.
func (c *IndexConflict) Unwrap() error { return c.Err }

// createIndexes runs one command and explains its failure.
func (t *Target) createIndexes(ctx context.Context, dataNS string, specs []bson.Raw) error {
	if len(specs) == 0 {
		return nil
	}
	start := time.Now()
	err := t.runCreateIndexes(ctx, dataNS, specs)
	if mongo.IsCode(err, mongo.CodeIndexOptionsConflict) {
		// Perhaps only in the expiry that one got already.
		missing, ferr := t.missing(ctx, dataNS, specs)
		if ferr != nil {
			return ferr
		}
		if len(missing) < len(specs) {
			return t.createIndexes(ctx, dataNS, missing)
		}
	}
	if err == nil {
		t.log.Debug("built indexes on the target", "ns", dataNS, "indexes", names(specs), "took", time.Since(start))
		return nil
	}
	err = fmt.Errorf("build indexes %s of %s on the target: %w", names(specs), dataNS, err)
	switch {
	case mongo.Classify(err) == mongo.ClassDuplicate:
		err = &IndexConflict{NS: dataNS, Specs: specs, Err: err}
		return mongo.WithHint(err, "two documents of the target have the key that the error names, which the source's unique index does not allow: "+
			"documents were in the collection before, or something else writes to it; "+
			"run millrace verify, remove what the source does not have, then resume")
	case mongo.Unindexable(err):
		return mongo.WithHint(err, "the target has a document that the index cannot take, and the source's index took all of the source: "+
			"documents were in the collection before, or something else writes to it; "+
			"run millrace verify, remove what the source does not have, then resume")
	case mongo.IsCode(err, mongo.CodeIndexOptionsConflict), mongo.IsCode(err, mongo.CodeIndexKeySpecsClash):
		return mongo.WithHint(err, "the target has a different index with that name or key: drop it there, then resume")
	}
	return err
}

func (t *Target) runCreateIndexes(ctx context.Context, dataNS string, specs []bson.Raw) error {
	db, coll := mongo.SplitNS(dataNS)
	err := t.change(ctx, db, bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: arrayOf(specs)}})
	return err
}

// missing returns the specifications that the collection has no index of, one
// that expires at another time aside.
func (t *Target) missing(ctx context.Context, dataNS string, specs []bson.Raw) ([]bson.Raw, error) {
	have, err := indexes(ctx, t.c, dataNS)
	if err != nil {
		return nil, err
	}
	var out []bson.Raw
	for _, spec := range specs {
		ix := stream.Index{Name: str(spec, "name"), Spec: spec}
		at := slices.IndexFunc(have, func(h stream.Index) bool { return h.Name == ix.Name })
		if at >= 0 {
			diffs, err := diffIndexes(Collection{Indexes: []stream.Index{ix}}, Collection{Indexes: []stream.Index{have[at]}}, DiffOptions{IgnoreTTL: true})
			if err != nil {
				return nil, err
			}
			if len(diffs) == 0 {
				continue
			}
		}
		out = append(out, spec)
	}
	return out, nil
}

func names(specs []bson.Raw) string {
	var out []string
	for _, s := range specs {
		out = append(out, str(s, "name"))
	}
	return strings.Join(out, ", ")
}

// BuildHeld builds the indexes held back, of collections side by side: to be
// called when the data is that of one moment. After a failure or a crash it can be
// called again.
func (t *Target) BuildHeld(ctx context.Context) error {
	held, err := t.held(ctx, bson.D{{Key: "unbuilt", Value: true}})
	if err != nil {
		return err
	}
	var builds []Build
	for ns, held := range byNS(held) {
		b := Build{NS: ns}
		for _, h := range held {
			b.Indexes = append(b.Indexes, stream.Index{Name: h.Index, Spec: h.Spec})
		}
		dataNS, _, err := t.locate(ctx, ns)
		if err == nil {
			_, b.Bytes, err = size(ctx, t.c, dataNS)
		}
		if err != nil {
			return fmt.Errorf("build the indexes held back of %s: %w", ns, err)
		}
		builds = append(builds, b)
	}
	return eachBuild(ctx, builds, t.o.Parallel, t.buildThenRelease)
}

// buildThenRelease builds indexes held back and forgets that they were, in
// this order.
func (t *Target) buildThenRelease(ctx context.Context, b Build, commands int) error {
	dataNS, all, err := t.planAll(ctx, b, Consistent)
	if err != nil {
		return fmt.Errorf("build the indexes held back of %s: %w", b.NS, err)
	}
	return t.inParts(ctx, dataNS, b, all, commands, func(done []HeldSetting, specs []bson.Raw) error {
		if err := t.createIndexes(ctx, dataNS, specs); err != nil {
			return err
		}
		return t.hold(ctx, done...)
	})
}

func byNS(held []HeldSetting) map[string][]HeldSetting {
	groups := map[string][]HeldSetting{}
	for _, h := range held {
		groups[h.NS] = append(groups[h.NS], h)
	}
	return groups
}

// RestoreTTL gives collections and indexes the expiry that was held back: the
// last step of a job, for from now on the target removes documents by itself.
// After a failure or a crash it can be called again.
func (t *Target) RestoreTTL(ctx context.Context) error {
	held, err := t.held(ctx, bson.D{{Key: "expire", Value: bson.D{{Key: "$exists", Value: true}}}})
	if err != nil {
		return err
	}
	return t.sideBySide(ctx, byNS(held), func(ctx context.Context, ns string, held []HeldSetting) error {
		for _, h := range held {
			if err := t.restoreOne(ctx, h); err != nil {
				return fmt.Errorf("restore the expiry of %s (index %q) on the target: %w", ns, h.Index, err)
			}
			if err := t.release(ctx, h); err != nil {
				return err
			}
		}
		return nil
	})
}

// release forgets what is held back for one index, or for a collection itself.
func (t *Target) release(ctx context.Context, h HeldSetting) error {
	id := heldID{Job: t.o.Job, NS: h.NS, Index: h.Index}
	if _, err := t.c.DeleteState(ctx, heldCollection, "majority", bson.D{{Key: "_id", Value: id}}); err != nil {
		return fmt.Errorf("forget what is held back for %s: %w", h.NS, err)
	}
	return nil
}

func (t *Target) restoreOne(ctx context.Context, h HeldSetting) error {
	if h.Index == "" {
		mod, err := with(emptyDoc(), "expireAfterSeconds", *h.Expire)
		if err != nil {
			return err
		}
		return t.collMod(ctx, h.NS, mod)
	}
	if h.Unbuilt {
		return errors.New("the index is not built yet") // a bug: BuildHeld comes first
	}
	n, _ := seconds(*h.Expire)
	mod, err := with(emptyDoc(), "index", bson.D{{Key: "name", Value: h.Index}, {Key: "expireAfterSeconds", Value: n}})
	if err != nil {
		return err
	}
	err = t.collMod(ctx, h.NS, mod)
	if err == nil {
		return nil
	}
	if coll, ok, findErr := t.find(ctx, h.NS); findErr == nil && ok && coll.Capped() {
		// Made on the source while the job ran, or the precheck had told. It
		// expired nothing there; the comparison of the catalogs tells again.
		t.log.Warn("the target refuses an index that expires documents of a capped collection; it has the index without the expiry",
			"ns", h.NS, "index", h.Index, "error", err)
		return nil
	}
	if convertsTTL(t.c.Info.Version) {
		return err
	}
	return t.rebuildWithTTL(ctx, h, n)
}

// rebuildWithTTL makes an index anew whose expiry collMod cannot add: an older
// server, and an index that had none when it was built.
func (t *Target) rebuildWithTTL(ctx context.Context, h HeldSetting, expire int64) error {
	spec, _, err := cleanIndex(stream.Index{Name: h.Index, Spec: h.Spec})
	if err == nil {
		spec, err = with(spec, "expireAfterSeconds", expire)
	}
	if err != nil {
		return err
	}
	dataNS, _, err := t.locate(ctx, h.NS)
	if err != nil {
		return err
	}
	if err := t.dropIndex(ctx, h.NS, h.Index); err != nil {
		return err
	}
	return t.createIndexes(ctx, dataNS, []bson.Raw{spec})
}

// dropIndex removes an index ("*" for all but that on _id); its absence or that
// of the collection is no error.
func (t *Target) dropIndex(ctx context.Context, ns, name string) error {
	db, coll := mongo.SplitNS(ns)
	err := t.change(ctx, db, bson.D{{Key: "dropIndexes", Value: coll}, {Key: "index", Value: name}})
	if err != nil && mongo.Classify(err) != mongo.ClassGone {
		return fmt.Errorf("drop index %s of %s on the target: %w", name, ns, err)
	}
	return nil
}
