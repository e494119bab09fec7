package seed

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/precheck"
)

// assumedRate is the speed of a copy, in bytes a second, where no limit is set:
// what one disk or a fast network carries.
const assumedRate = 100 << 20

// window compares the time that the oplog will hold with the time that the copy
// may take. An oplog that is not full yet holds more than it does now.
func (p *Plan) window(ctx context.Context, m *member, rate int64) {
	if p.Origin.WindowSecs <= 0 {
		return
	}
	raw, err := m.client.Database("local").RunCommand(ctx, bson.D{{Key: "collStats", Value: "oplog.rs"}}).Raw()
	if err != nil {
		return // who may not ask gets no estimate
	}
	size, _ := raw.Lookup("size").AsInt64OK()
	limit, ok := raw.Lookup("maxSize").AsInt64OK()
	if !ok || size <= 0 {
		return
	}
	p.compareWindow(p.Origin.WindowSecs*max(float64(limit)/float64(size), 1), rate)
}

func (p *Plan) compareWindow(window float64, rate int64) {
	if rate <= 0 {
		rate = assumedRate
	}
	if takes := float64(p.Bytes) / float64(rate); takes > window/2 {
		p.add(precheck.Warn, "oplog window", fmt.Sprintf("the oplog holds about %.0f s of the present writes, the copy takes about %.0f s at %s a second", window, takes, humanize.Bytes(uint64(rate))),
			"make the oplog larger (replSetResizeOplog) or the copy faster; with a lock or a backup cursor only the time after it counts")
	}
}
