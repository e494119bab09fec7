package sharded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	// commandTimeout bounds what has no deadline of its own. It is long: on a
	// busy machine a server may be slow, and only what hangs comes to it.
	commandTimeout = 3 * time.Minute
	// again is the pause before something is asked for once more.
	again = 20 * time.Millisecond
)

// Error codes of what passes by itself: another migration or split holds the
// collection, a primary has gone, a shard's picture of the cluster is old and is
// being renewed because of this very error.
const (
	codeLockBusy            = 46
	codeHostUnreachable     = 6
	codeShardNotFound       = 70 // a shard that has not heard of one that just joined
	codeConflictingOpInProg = 117
	codeNoPrimary           = 133
	codeStaleEpoch          = 150
	codePrimarySteppedDown  = 189
	codeStaleDbVersion      = 249
	codeNotWritablePrimary  = 10107
	codeInterruptedByStep   = 11602
	codeStaleConfig         = 13388
	codeStaleShardVersion   = 63 // the same, of a write before 6.0
)

// passes reports whether an error is one of those.
func passes(err error) bool {
	var answer mongo.ServerError
	if !errors.As(err, &answer) {
		return false
	}
	return slices.ContainsFunc([]int{
		codeLockBusy, codeHostUnreachable, codeShardNotFound, codeConflictingOpInProg, codeNoPrimary, codeStaleEpoch,
		codePrimarySteppedDown, codeStaleDbVersion, codeNotWritablePrimary, codeInterruptedByStep, codeStaleConfig, codeStaleShardVersion,
	}, answer.HasErrorCode)
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
	err := poll(ctx, again, func() (bool, error) {
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

// poll calls check until it says true, fails, or ctx ends.
func poll(ctx context.Context, every time.Duration, check func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := check(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
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
