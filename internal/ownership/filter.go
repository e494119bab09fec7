package ownership

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// Version makes a shard return only the documents that it owns.
type Version struct {
	Name  string // of the collection
	Shard any    // shardVersion, in the form of the servers' version
}

// Filter makes a shard return only the documents of a collection that it owns when a cursor is opened, without those
// that have moved away or are arriving. It is safe for concurrent use.
type Filter struct {
	load  func(context.Context) (Version, error)
	fixed bool

	mu     sync.Mutex
	now    Version
	loaded bool
}

// NewFilter follows a collection whose chunks move. load reads the present version; an error of
// mongo.CodeNamespaceNotFound says that the collection is gone.
func NewFilter(load func(context.Context) (Version, error)) *Filter { return &Filter{load: load} }

// Filter has the version of the table for a shard. If the shard refuses it, Stale reports that error.
func (t *Table) Filter(shard string) *Filter {
	return &Filter{fixed: true, now: t.Version(shard), loaded: true}
}

// Fixed reports a filter of one table's version.
func (f *Filter) Fixed() bool { return f.fixed }

// Stale reports that a shard has another version than a command, or cannot determine now whether it has.
func Stale(err error) bool {
	const staleShardVersion, cannotRefresh, staleConfig = 63, 343, 13388
	return mongo.IsCode(err, staleConfig) || mongo.IsCode(err, staleShardVersion) || mongo.IsCode(err, cannotRefresh)
}

const versionField = "shardVersion"

// Mark makes Run add the version to a command, whose first element is the collection. f may be nil.
func (f *Filter) Mark(cmd bson.D) bson.D {
	if f != nil {
		cmd = append(cmd, bson.E{Key: versionField})
	}
	return cmd
}

// Run runs a marked command with the present version, and again with a newer one. f may be nil.
func (f *Filter) Run(ctx context.Context, cmd bson.D, run func(bson.D) error) error {
	if f == nil || !slices.ContainsFunc(cmd, func(e bson.E) bool { return e.Key == versionField }) {
		return run(cmd)
	}
	var refused Version
	for began := time.Now(); ; {
		v, err := f.version(ctx, refused)
		if err != nil {
			return err
		}
		err = run(v.in(cmd))
		switch {
		case !Stale(err) || f.fixed:
			return err
		case time.Since(began) > time.Minute: // the first newer version succeeds otherwise
			return mongo.Retry(fmt.Sprintf("%s moves from shard to shard all the time", v.Name), err, "")
		}
		refused = v
		if err := pace.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// version is the present one, or a newer one than refused.
func (f *Filter) version(ctx context.Context, refused Version) (Version, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loaded && (refused.Shard == nil || !f.now.equal(refused)) {
		return f.now, nil
	}
	v, err := f.load(ctx)
	if err == nil {
		f.now, f.loaded = v, true
	}
	return v, err
}

func (v Version) equal(w Version) bool {
	one, err1 := bson.Marshal(bson.D{{Key: "v", Value: v.Shard}})
	other, err2 := bson.Marshal(bson.D{{Key: "v", Value: w.Shard}})
	return v.Name == w.Name && err1 == nil && err2 == nil && bytes.Equal(one, other)
}

func (v Version) in(cmd bson.D) bson.D {
	cmd = slices.Clone(cmd)
	cmd[0].Value = v.Name
	for i := range cmd {
		if cmd[i].Key == versionField {
			cmd[i].Value = v.Shard
		}
	}
	return cmd
}
