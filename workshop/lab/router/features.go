package router

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// features are what the router has to know of the servers' version.
type features struct {
	build   bson.D // buildInfo as a server answers it
	wire    int32  // maxWireVersion
	version [2]int32
}

// readFeatures asks a server.
func readFeatures(ctx context.Context, n *node) (f features, err error) {
	build, err := n.command(ctx, "admin", bson.D{{Key: "buildInfo", Value: 1}})
	if err != nil {
		return f, fmt.Errorf("read the servers' version: %w", err)
	}
	f.build = without(passed(build), "ok")
	parts, err := bson.Raw(build).Lookup("versionArray").Array().Values()
	if err != nil || len(parts) < 2 {
		return f, fmt.Errorf("read the servers' version: %w", errMalformed)
	}
	f.version = [2]int32{parts[0].Int32(), parts[1].Int32()}
	hello, err := n.command(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return f, fmt.Errorf("read the servers' wire version: %w", err)
	}
	f.wire = int32(number(bson.Raw(hello).Lookup("maxWireVersion")))
	return f, nil
}

// atLeast reports a version from major.minor on.
func (f features) atLeast(major, minor int32) bool {
	return f.version[0] > major || f.version[0] == major && f.version[1] >= minor
}
