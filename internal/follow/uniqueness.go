package follow

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
)

// mostDuplicates bounds the keys that one index build may stumble over, each of
// which costs a scan.
const mostDuplicates = 1000

// mostUnclear bounds how often the job goes back to its checkpoint because it
// cannot tell which of two documents is in the way.
const mostUnclear = 5

// untangled runs something that builds unique indexes on the drained target,
// again after each duplicate key that the policy on conflicts decides.
func (f *follower) untangled(ctx context.Context, build func() error) error {
	for n := 0; ; n++ {
		err := build()
		var ic *schema.IndexConflict
		if err == nil || !errors.As(err, &ic) || n == mostDuplicates {
			return err
		}
		if err := f.untangle(ctx, ic); err != nil {
			return err
		}
	}
}

func (f *follower) untangle(ctx context.Context, ic *schema.IndexConflict) error {
	var ce driver.CommandError
	if !errors.As(ic.Err, &ce) {
		return ic
	}
	dup := docwrite.ParseDuplicate(ce.Raw)
	var spec bson.Raw
	for _, s := range ic.Specs {
		if name, _ := s.Lookup("name").StringValueOK(); name == dup.Index() {
			spec = s
		}
	}
	if spec == nil {
		return ic
	}
	const some = 100
	docs, err := dup.Holders(ctx, f.Target, docwrite.Holding{NS: ic.NS, Spec: spec, Most: some})
	if err == nil && len(docs) < 2 {
		docs, err = f.Schema.Duplicates(ctx, ic.NS, spec)
	}
	if err != nil {
		return err
	}
	err = f.sink.Untangle(ctx, mongosink.Clash{NS: ic.NS, Index: dup.Index(), Docs: docs, Reason: ic.Error()})
	var conflict *mongosink.ConflictError
	if errors.As(err, &conflict) && conflict.Undecided && *f.Unclear < mostUnclear {
		// From the checkpoint the job first catches up with the source.
		*f.Unclear++
		return mongo.Retry("it will be clearer after the checkpoint", err, "")
	}
	return err
}
