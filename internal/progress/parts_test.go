package progress

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// fromShards is a copy of shards that has done something.
type fromShards []ShardDone

func (fromShards) Stats() copy.Stats           { return copy.Stats{} }
func (fromShards) Copied() (docs, bytes int64) { return 0, 0 }
func (fromShards) Done() (docs, bytes int64)   { return 0, 0 }
func (all fromShards) ByShard() []ShardDone    { return all }

// changes is a source of parts.
type changes struct {
	stream.Source
	parts []stream.PartStats
}

func (c *changes) Stats() stream.SourceStats { return stream.SourceStats{Parts: c.parts} }

type idle struct{ stream.Sink }

func (idle) Stats() stream.SinkStats  { return stream.SinkStats{} }
func (idle) Applied() stream.Position { return stream.Position{} }

// TestParts: figures by shard and router add up over copies and runs of a process, have
// rates, and say which shard is behind; of too many the rest is one.
func TestParts(t *testing.T) {
	p, c := newProgress()
	sent := []RouterDone{{"r1:27017", 10, 1000}}
	p.o.Routers = func() []RouterDone { return sent }
	p.Copying(fromShards{{Shard: "s2", Docs: 5, Bytes: 50}, {Shard: "s1", Docs: 1, Bytes: 10}})
	p.Copying(fromShards{{Shard: "s1", Docs: 2, Bytes: 20}})
	src := &changes{parts: []stream.PartStats{{Name: "s1", Events: 100, Bytes: 1000, At: at(870)},
		{Name: "s2", Events: 7, Bytes: 70, At: at(900)}}}
	p.Following(idle{}, src)
	p.SetApplied(stream.Position{At: at(860)})
	p.SourceAt(mongo.Positions{Last: at(900), Majority: at(900), Now: time.Unix(900, 0)})
	p.SourceWindow(&oplog.Window{Shards: map[string]oplog.Window{"s1": {Oldest: at(400)}, "s2": {Oldest: at(800)},
		"s9": {Oldest: at(1)}}})
	p.Sample()
	c.after(4 * time.Second)
	src.parts[0].Events, src.parts[0].Bytes, sent = 140, 1400, []RouterDone{{"r1:27017", 30, 9000}, {"r2:27017", 1, 1}}
	st := status(p)
	want := []Shard{
		{Shard: "s1", Docs: 3, Bytes: 30, Changes: 140, ChangesRate: 10, ChangeBytes: 1400, ChangeBytesRate: 100,
			LagSeconds: 30, WindowSeconds: 460, At: at(870).String()},
		{Shard: "s2", Docs: 5, Bytes: 50, Changes: 7, ChangeBytes: 70, LagSeconds: 0, WindowSeconds: 60,
			At: at(900).String()},
	}
	if fmt.Sprint(st.Shards) != fmt.Sprint(want) {
		t.Errorf("%+v\nwant %+v", st.Shards, want)
	}
	if fmt.Sprint(st.Routers) != fmt.Sprint([]Router{{"r1:27017", 30, 5, 9000, 2000}, {"r2:27017", 1, 0.25, 1, 0.25}}) {
		t.Errorf("%+v", st.Routers)
	}
	p.Following(idle{}, &changes{parts: []stream.PartStats{{Name: "s1", Events: 1}}})
	if d := p.Done(); d.Shards[0].Changes != 141 || d.Shards[1].Changes != 7 || d.Shards[0].Docs != 3 {
		t.Errorf("%+v", d.Shards)
	}
	var many []stream.PartStats
	for i := range 50 {
		many = append(many, stream.PartStats{Name: fmt.Sprint("n", i), Events: 2, At: at(uint32(850 + i))})
	}
	p.Following(idle{}, &changes{parts: many})
	st = status(p)
	if rest := st.Shards[len(st.Shards)-1]; len(st.Shards) != MaxParts+1 || rest.Shard != Others ||
		rest.Changes != 2*(50-MaxParts+2) || rest.LagSeconds != float64(50-MaxParts+2) {
		t.Errorf("%d shards, the last %+v", len(st.Shards), rest)
	}
	p.SourceSilent(errors.New("gone"))
	c.after(time.Minute)
	if st = status(p); st.Shards[0].LagSeconds != -1 {
		t.Errorf("while the source is silent: %+v", st.Shards[0])
	}
}

// TestHolding: since when the others wait for a shard stays the same while they do.
func TestHolding(t *testing.T) {
	p, c := newProgress()
	since := c.now
	p.Following(idle{}, &holds{since: since})
	for range 3 {
		c.after(time.Second)
		if h := status(p).Follow.Holding; h == nil || h.Shard != "s1" || !h.Since.Equal(since) {
			t.Errorf("%+v", h)
		}
	}
}

// holds is a source of which one part holds the others up.
type holds struct {
	stream.Source
	since time.Time
}

func (h *holds) Stats() stream.SourceStats {
	return stream.SourceStats{Waits: stream.Wait{Part: "s1", For: time.Since(h.since), Moved: h.since,
		Since: mongo.OpTime{TS: bson.Timestamp{T: 9}}}}
}
