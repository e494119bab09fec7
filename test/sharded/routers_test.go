package sharded_test

import (
	"testing"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// newRoutersBed has a source whose shards refuse to be read directly, and two routers.
func newRoutersBed(t *testing.T) *bed {
	t.Helper()
	lab.NeedServers(t)
	b := &bed{T: t, seed: testseed.Of(t)}
	b.lab = sharded.ForTest(t, sharded.Options{Routers: 2, RefuseDirect: true,
		Options: lab.Options{Topology: "sharded:2x1", SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}})
	b.sourceURI, b.targetURI = b.lab.URI(), lab.ForTest(t, lab.Options{}).URI()
	b.source, b.target = b.client(b.sourceURI), b.client(b.targetURI)
	return b
}

// TestRouters: a cluster whose shards refuse direct reads arrives whole through its routers, while its chunks
// move. A job that is broken off goes on as it began.
func TestRouters(t *testing.T) {
	b := newRoutersBed(t)
	b.collections()
	b.fill(20)
	end := b.writing()
	first, ended, breakOff := b.begin(b.spec())
	b.following(first, ended)
	b.applies(first, ended, 100)
	breakOff()
	spec := b.spec()
	spec.Capture = job.CaptureStreams
	j, done := b.start(spec)
	b.following(j, done)
	b.applies(j, done, 500)
	end()
	b.finish(j, done)
}
