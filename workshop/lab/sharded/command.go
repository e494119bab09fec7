package sharded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/workshop/lab"
)

const (
	// commandTimeout bounds what has no deadline of its own. It is long: on a
	// busy machine a server may be slow, and only what hangs comes to it.
	commandTimeout = 3 * time.Minute
	// again is the pause before something is asked for once more.
	again = 20 * time.Millisecond
)

// stale reports whether a shard has refused a command, and done nothing of it,
// because its picture of the cluster and the caller's differ. The shard renews its
// own because of this very error.
func stale(err error) bool {
	const (
		staleShardVersion = 63 // of a write before 6.0
		staleEpoch        = 150
		staleDbVersion    = 249
		staleConfig       = 13388
	)
	return hasCode(err, staleShardVersion, staleEpoch, staleDbVersion, staleConfig)
}

// passes reports whether an error passes by itself: it is stale, another migration
// or split holds the collection, or a primary has gone. All that is asked for here
// may be asked for twice.
func passes(err error) bool {
	const (
		hostUnreachable        = 6
		lockTimeout            = 24
		lockBusy               = 46
		shardNotFound          = 70 // by a shard that has not heard of one that has just joined
		networkTimeout         = 89
		shutdownInProgress     = 91
		conflictingOperation   = 117
		failedToFindPrimary    = 133
		majorityNotYet         = 134
		primarySteppedDown     = 189
		socketException        = 9001
		notWritablePrimary     = 10107
		interruptedAtShutdown  = 11600
		interruptedByElection  = 11602
		notPrimaryOrRecovering = 13436
	)
	// Of no public type: the driver's to those who wait for a connection of a pool
	// when another operation finds its server gone.
	var pool interface {
		error
		Retryable() bool
	}
	if errors.As(err, &pool) && pool.Retryable() {
		return true
	}
	return stale(err) || mongo.IsNetworkError(err) || hasCode(err, hostUnreachable, lockTimeout, lockBusy, shardNotFound, networkTimeout,
		shutdownInProgress, conflictingOperation, failedToFindPrimary, majorityNotYet, primarySteppedDown, socketException,
		notWritablePrimary, interruptedAtShutdown, interruptedByElection, notPrimaryOrRecovering)
}

// hasCode reports whether a server has answered with one of the codes.
func hasCode(err error, codes ...int) bool {
	var answer mongo.ServerError
	return errors.As(err, &answer) && slices.ContainsFunc(codes, answer.HasErrorCode)
}

// majority is what the config servers' commands and the shards' insist on.
func majority() bson.E {
	return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
}

// run sends a command that make makes anew each time, until it is answered
// with something that does not pass by itself.
func (s *set) run(ctx context.Context, db string, make func(context.Context) (bson.D, error)) (bson.Raw, error) {
	ctx, cancel := withTimeout(ctx, commandTimeout)
	defer cancel()
	var last error
	var reply bson.Raw
	err := lab.Poll(ctx, again, func() (bool, error) {
		cmd, err := make(ctx)
		if err != nil {
			return false, err
		}
		reply, last = s.client.Database(db).RunCommand(ctx, cmd).Raw()
		if last == nil || !passes(last) {
			return true, nil
		}
		return false, nil
	})
	return reply, errors.Join(err, last)
}

// command sends a command, to the database admin.
func (s *set) command(ctx context.Context, cmd bson.D) error {
	_, err := s.run(ctx, "admin", func(context.Context) (bson.D, error) { return cmd, nil })
	if err != nil {
		return fmt.Errorf("lab: %s on %s: %w", cmd[0].Key, s.Name(), err)
	}
	return nil
}

// version is the first two numbers of a server's.
type version [2]int

// The versions from which on commands differ.
func (v version) atLeast5() bool { return v[0] >= 5 }
func (v version) atLeast6() bool { return v[0] >= 6 }

// askVersion asks the config servers for their version.
func (c *Cluster) askVersion(ctx context.Context) (version, error) {
	var info struct {
		Version []int `bson:"versionArray"`
	}
	err := c.config.client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info)
	if err != nil {
		return version{}, fmt.Errorf("ask for the version: %w", err)
	}
	if len(info.Version) < 2 {
		return version{}, errors.New("the server names no version")
	}
	return version{info.Version[0], info.Version[1]}, nil
}
