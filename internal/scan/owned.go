package scan

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// Version is what a shard is asked with for the documents that it owns.
type Version struct {
	Name  string // of the collection
	Shard any    // shardVersion, in the form of the servers' version
}

// Owned has a shard give only those documents of a collection that it owns when a
// cursor is opened; without, it gives also those that have moved away, or are about to
// come. It is safe for concurrent use.
type Owned struct {
	// Load asks which version there is. An error of mongo.CodeNamespaceNotFound says
	// that the collection is gone.
	Load func(context.Context) (Version, error)
	// Fixed has a version that the shard refuses be an error, which Stale reports.
	Fixed bool

	mu   sync.Mutex
	now  Version
	done bool // loaded
}

// Stale reports that a shard knows of another version than it was asked with, or
// cannot learn now whether it does.
func Stale(err error) bool {
	const staleShardVersion, cannotRefresh, staleConfig = 63, 343, 13388
	return mongo.IsCode(err, staleConfig) || mongo.IsCode(err, staleShardVersion) || mongo.IsCode(err, cannotRefresh)
}

// versionField marks the commands to which a version belongs.
const versionField = "shardVersion"

// stalePatience bounds how long a version is sought that the shard takes. One is
// found at once, unless chunks move all the time.
const stalePatience = time.Minute

// asked runs a command of Find with the version of now, and again with a newer one.
func (o *Owned) asked(ctx context.Context, cmd bson.D, run func(bson.D) error) error {
	if o == nil || !slices.ContainsFunc(cmd, func(e bson.E) bool { return e.Key == versionField }) {
		return run(cmd)
	}
	var refused Version
	for began := time.Now(); ; {
		v, err := o.version(ctx, refused)
		if err != nil {
			return err
		}
		err = run(v.in(cmd))
		switch {
		case !Stale(err) || o.Fixed:
			return err
		case time.Since(began) > stalePatience:
			return mongo.Retry(fmt.Sprintf("%s moves from shard to shard all the time", v.Name), err, "")
		}
		refused = v
		if err := pace.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// version is the one of now, or one that is newer than one that was refused.
func (o *Owned) version(ctx context.Context, refused Version) (Version, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done && (refused.Shard == nil || !same(o.now, refused)) {
		return o.now, nil
	}
	v, err := o.Load(ctx)
	if err == nil {
		o.now, o.done = v, true
	}
	return v, err
}

func same(a, b Version) bool {
	one, err1 := bson.Marshal(bson.D{{Key: "v", Value: a.Shard}})
	other, err2 := bson.Marshal(bson.D{{Key: "v", Value: b.Shard}})
	return a.Name == b.Name && err1 == nil && err2 == nil && string(one) == string(other)
}

// in puts the version into a command, whose first element is the collection.
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

// Range is a part of a collection between two keys of an index, the upper excluded.
// Both have all fields of the index.
type Range struct {
	Hint         any // what names the index
	Lower, Upper bson.Raw
}
