package job

import (
	"context"

	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// source is the source as a job needs it, whatever its shape.
type source interface {
	follow.Origin
	// Snapshot lists the catalog as it stood at a position to follow from.
	Snapshot(ctx context.Context, scope schema.Scope) (schema.Snapshot, stream.Position, error)
	// Changes is what happens there. The names are those at the position of a run.
	Changes(o oplog.Options, names func() []schema.Name, noted mongo.OpTime) stream.Source
	// ReadFrom is the first change that whoever stands at a position needs.
	ReadFrom(stream.Position) (mongo.OpTime, error)
	// Window is the oldest and the newest position that can be read.
	Window(ctx context.Context) (oldest, newest mongo.OpTime, err error)
	// Full reports that there are oplogs that forget.
	Full(ctx context.Context) bool
}
