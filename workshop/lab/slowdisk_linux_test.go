package lab

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sys/unix"
)

// A server with a slowed disk, a small cache and a part of a processor works,
// and each flush takes as long as it is told to.
func TestSlowDisk(t *testing.T) {
	Nightly(t)
	const latency = 2 * time.Millisecond
	NeedServers(t)
	c, err := Start(t.Context(), Options{CacheGB: 0.03, LeanJournal: true, Cores: 0.5,
		DiskSpeed: DiskSpeed{Latency: latency, PerSecond: 2000}})
	if errors.Is(err, ErrNoSlowDisk) || errors.Is(err, ErrNoQuota) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	client, err := mongo.Connect(options.Client().ApplyURI(c.URI() + "&w=1&journal=true"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(t.Context()) }()
	coll := client.Database("d").Collection("c")
	if err := client.Database("d").CreateCollection(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*latency { // a write of the journal, and its flush
		t.Errorf("a journaled insert took %s", took)
	}
	var status struct {
		WiredTiger struct {
			Cache map[string]any `bson:"cache"`
		} `bson:"wiredTiger"`
	}
	if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).
		Decode(&status); err != nil {
		t.Fatal(err)
	}
	if got := status.WiredTiger.Cache["maximum bytes configured"]; got != int32(32212254) && got != int64(32212254) {
		t.Errorf("cache of %v bytes", got)
	}
	if err := c.Members()[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Members()[0].Start(t.Context()); err != nil { // with limits of its own
		t.Fatal(err)
	}
}

func TestSlowDiskNeedsItsStarter(t *testing.T) {
	store, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{{Cores: 1}, {DiskSpeed: DiskSpeed{PerSecond: 1}}} {
		if _, err := store.Up(t.Context(), o); err == nil || !strings.Contains(err.Error(), "outlives") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Turns are a second's share apart, and none is saved up.
func TestTurnsOfADisk(t *testing.T) {
	d := newSlowDisk(DiskSpeed{Latency: time.Hour, PerSecond: 2})
	var turn time.Time
	first := d.due(&turn, 1)
	second, third := d.due(&turn, 2), d.due(&turn, 1)
	if second.Sub(first) != time.Second/2 || third.Sub(second) != time.Second || time.Until(first) < 59*time.Minute {
		t.Errorf("%s, %s, %s", first, second, third)
	}
}

// A turn moves 256 KiB of a file in a row; a flush or a gap ends it.
func TestTurnsOfACall(t *testing.T) {
	const k = 1 << 10
	files := map[uint64]stretch{}
	for i, c := range []struct {
		number   int32
		file     uint64
		bytes    uint64
		at       uint64
		expected int
	}{
		{unix.SYS_PREAD64, 1, 4 * k, 0, 1}, {unix.SYS_PREAD64, 1, 252 * k, 4 * k, 0},
		{unix.SYS_PREAD64, 1, 1, 256 * k, 1}, {unix.SYS_PREAD64, 2, 600 * k, 0, 3},
		{unix.SYS_PREAD64, 2, 168 * k, 600 * k, 0}, {unix.SYS_PREAD64, 2, 1, 900 * k, 1},
		{unix.SYS_PWRITE64, 3, 4 * k, 0, 1}, {unix.SYS_FSYNC, 3, 0, 0, 1}, {unix.SYS_PWRITE64, 3, 4 * k, 4 * k, 1},
		{unix.SYS_PWRITEV, 3, 2, 8 * k, 1},
	} {
		n := notification{number: c.number, args: [6]uint64{c.file, 0, c.bytes, c.at}}
		if got := n.turns(files); got != c.expected {
			t.Errorf("call %d takes %d turns, want %d", i, got, c.expected)
		}
	}
}
