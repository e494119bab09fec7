package oplog

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// Entries of servers that no test can run (8.0 to 9.0), made as trackers and other tools describe them
// (docs/internals/decisions/042-newer-servers.md).

// groupedOp makes an operation of an applyOps entry.
func groupedOp(op, ns string, o bson.D, more ...bson.E) bson.D {
	return append(bson.D{{Key: "op", Value: op}, {Key: "ns", Value: ns},
		{Key: "ui", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}, {Key: "o", Value: o}}, more...)
}

// grouped makes an applyOps entry of operations.
func grouped(t testing.TB, i uint32, ops []bson.D, more ...bson.E) bson.Raw {
	t.Helper()
	return oplogEntry(t, i, "c", "admin.$cmd", bson.D{{Key: "applyOps", Value: ops}}, more...)
}

// inSession are the fields of an entry that belongs to a transaction or to a retryable write.
func inSession(id int, more ...bson.E) []bson.E {
	return append([]bson.E{{Key: "lsid", Value: bson.D{{Key: "id", Value: id}}},
		{Key: "txnNumber", Value: int64(1)}}, more...)
}

func separately() bson.E { return bson.E{Key: "multiOpType", Value: int32(1)} }

func before(i uint32) bson.E {
	return bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: ts(i)}, {Key: "t", Value: int64(1)}}}
}

// assembled returns the events of entries, and the batch that ends with the last one.
func assembled(t testing.TB, v mongo.Version, o Options, entries ...bson.Raw) ([]stream.Event, *stream.Batch) {
	t.Helper()
	var all []stream.Event
	var last *stream.Batch
	a := offline(func(_ context.Context, b *stream.Batch) error {
		all, last = append(all, b.Events...), b
		return nil
	}, o)
	a.version = v
	a.names.known = map[[16]byte]string{{}: "kept.c"} // those of users' applyOps, which no server is asked for
	for _, e := range entries {
		ok(t, a.entry(t.Context(), e))
	}
	ok(t, a.flush(t.Context(), false, false))
	return all, last
}

func newerVersions() []mongo.Version {
	return []mongo.Version{{Major: 6, Patch: 5}, {Major: 7}, {Major: 8}, {Major: 8, Minor: 3}, {Major: 9, Patch: 4}}
}

// ofServers are entries by which servers replicate writes to their own tables: by themselves and in every
// entry that groups operations.
func ofServers(t testing.TB, ns string) (entries []func(i uint32) bson.Raw) {
	key := bson.D{{Key: "k", Value: int64(7)}, {Key: "v", Value: bson.Binary{Data: []byte("x")}}}
	container := bson.E{Key: "container", Value: "internal-7--410490914"}
	var ops []bson.D
	for _, op := range []string{"ci", "cd", "cu", "km"} {
		ops = append(ops, groupedOp(op, ns, key, container))
		entries = append(entries, func(i uint32) bson.Raw { return oplogEntry(t, i, op, ns, key, container) })
	}
	for _, o := range []bson.D{{{Key: "dropIdent", Value: "collection-7--4104909142373009110"}},
		{{Key: "setMultikeyMetadata", Value: "index-7--41"}}, {{Key: "setMultikeyMetadata", Value: 1}}} {
		for _, db := range []string{"admin", "kept", "other"} {
			ops = append(ops, groupedOp("c", db+".$cmd", o))
			entries = append(entries, func(i uint32) bson.Raw { return oplogEntry(t, i, "c", db+".$cmd", o) })
		}
	}
	return append(entries,
		func(i uint32) bson.Raw { return grouped(t, i, ops) },
		func(i uint32) bson.Raw { return grouped(t, i, ops, separately()) },
		func(i uint32) bson.Raw { return grouped(t, i, ops, inSession(1, separately(), before(1))...) },
		func(i uint32) bson.Raw { return grouped(t, i, ops, inSession(2)...) },
	)
}

// TestServersOwnTables: what servers write to their own tables is no event, moves the position on, and leaves the
// entries around it as they are: the index of which it is a part comes with commitIndexBuild.
func TestServersOwnTables(t *testing.T) {
	key := bson.D{{Key: "commitIndexBuild", Value: "c"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a_1"}}}}}
	for _, ns := range []string{"kept.c", "other.c", "admin.$cmd", "admin.$container", ""} {
		for n, entry := range ofServers(t, ns) {
			for _, v := range newerVersions() {
				es, last := assembled(t, v, Options{Keep: only("kept"), JoinRenames: true},
					oplogEntry(t, 2, "c", "kept.$cmd", bson.D{{Key: "startIndexBuild", Value: "c"}}),
					oplogEntry(t, 3, "i", "kept.c", doc(1)), entry(4),
					oplogEntry(t, 5, "d", "kept.c", doc(1)), entry(6),
					oplogEntry(t, 7, "c", "kept.$cmd", key), entry(8))
				got := events([]*stream.Batch{{Events: es}})
				want := []string{`insert kept.c 1 {"_id":1}`, "delete kept.c 1", "schema createIndexes kept.c"}
				if !slices.Equal(got, want) {
					t.Errorf("%s, entry %d, %s: %q", ns, n, v, got)
				}
				if last.End.TS != ts(8) || openAt(t, last).TS != ts(8) {
					t.Errorf("%s, entry %d: the position is %s, %s", ns, n, last.End, last.Mark)
				}
			}
		}
	}
}

// TestServersTablesProveNothing: an entry of a server's own table does not say that a collection was written to,
// which would exclude it as the origin of a rename between databases.
func TestServersTablesProveNothing(t *testing.T) {
	id := func(b byte) bson.E {
		return bson.E{Key: "ui", Value: bson.Binary{Subtype: 4, Data: bytes.Repeat([]byte{b}, 16)}}
	}
	entry := func(i uint32, op, ns string, o bson.D, ui bson.E) bson.Raw {
		return kit.Raw(bson.D{{Key: "op", Value: op}, {Key: "ns", Value: ns}, ui, {Key: "o", Value: o},
			{Key: "ts", Value: ts(i)}, {Key: "t", Value: int64(1)}, {Key: "wall", Value: bson.DateTime(1_000_000)}})
	}
	a := offline(discard, Options{Keep: only("shop"), JoinRenames: true})
	const staging = "tmpa1B2c.renameCollection"
	for _, e := range []bson.Raw{
		entry(2, "c", "shop.$cmd", bson.D{{Key: "create", Value: staging}}, id(1)),
		entry(3, "ci", "other.c", bson.D{{Key: "k", Value: 1}}, id(2)),
		entry(4, "i", "shop."+staging, doc(1), id(1)),
		entry(5, "c", "shop.$cmd", bson.D{{Key: "renameCollection", Value: "shop." + staging}, {Key: "to", Value: "shop.c"}},
			id(1)),
		entry(6, "c", "other.$cmd", bson.D{{Key: "drop", Value: "c"}}, id(2)),
	} {
		ok(t, a.entry(t.Context(), e))
	}
	got := a.events[len(a.events)-2].Change
	if got.Kind != stream.ChangeRename || got.NS != "other.c" || got.To != "shop.c" {
		t.Errorf("%+v", got)
	}
}

// TestUnknownKinds: an entry of an unknown kind is never skipped: neither as one of another namespace, nor within
// others, nor as a chunk migration, nor by those who look for a few collections only.
func TestUnknownKinds(t *testing.T) {
	testseed.Each(t, func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		for range 300 {
			unknownKind(t, rng)
		}
	})
}

func unknownKind(t *testing.T, rng *rand.Rand) {
	ns := []string{"kept.c", "other.c", "config.c", "local.c", "admin.c", "millrace.c", "", "kept",
		"kept.system.views"}[rng.IntN(9)]
	op, o := name(rng, 4), doc(1)
	for slices.Contains([]string{"i", "u", "d", "n", "c", "ci", "cd", "cu", "km"}, op) {
		op = name(rng, 4)
	}
	if rng.IntN(2) == 0 { // a command
		op, o = "c", bson.D{{Key: name(rng, 12), Value: []any{1, "c", true, bson.D{}}[rng.IntN(4)]}}
		if rng.IntN(5) > 0 { // else of a namespace that commands do not have
			ns = []string{"kept.$cmd", "other.$cmd", "admin.$cmd"}[rng.IntN(3)]
		}
	}
	var more []bson.E
	if rng.IntN(2) == 0 {
		more = append(more, bson.E{Key: "fromMigrate", Value: true})
	}
	entry := oplogEntry(t, 2, op, ns, o, more...)
	for n := range rng.IntN(3) { // within others
		ops := []bson.D{groupedOp("i", "kept.c", doc(0)), groupedOp(op, ns, o, more...)}
		if n > 0 {
			ops = []bson.D{groupedOp("c", "admin.$cmd", bson.D{{Key: "applyOps", Value: ops}})}
		}
		with := [][]bson.E{nil, {separately()}, inSession(1), inSession(1, separately())}[rng.IntN(4)]
		entry = grouped(t, 2, ops, with...)
	}
	text := fmt.Sprintf("op %q on %q: %s", op, ns, entry)
	keeps := Options{Keep: only("kept"), SkipMigrated: rng.IntN(2) == 0, JoinRenames: rng.IntN(2) == 0}
	a := offline(discard, keeps)
	a.version = newerVersions()[rng.IntN(5)]
	a.names.known = map[[16]byte]string{{}: "kept.c"}
	err := a.entry(t.Context(), entry)
	if err == nil || !strings.Contains(err.Error(), "1000:2") || !strings.Contains(mongo.HintOf(err), "--restart") {
		t.Errorf("%s: %v, hint %q", text, err, mongo.HintOf(err))
	}
	if a.end.TS == ts(2) {
		t.Errorf("%s: the position has passed it", text)
	}
	in := newInterpreter(&mongo.Cluster{}, keeps)
	in.version, in.names.known, in.namesAlone = a.version, a.names.known, true
	e, err := parseEntry(entry)
	ok(t, err)
	if err := in.each(t.Context(), &e, func(*stream.Event) error { return nil }); err == nil {
		t.Errorf("%s: skipped by one who looks for collections", text)
	}
}

// name makes a name of up to most letters.
func name(rng *rand.Rand, most int) string {
	b := make([]byte, 1+rng.IntN(most))
	for i := range b {
		b[i] = byte('a' + rng.IntN(26))
	}
	return string(b)
}

// TestUnknownOfServers: an unknown command on a database that is not replicated is skipped, and logged once.
func TestUnknownOfServers(t *testing.T) {
	var log bytes.Buffer
	a := offline(discard, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for i := range uint32(6) {
		db := []string{"config", "local", "millrace"}[i%3]
		ok(t, a.entry(t.Context(), oplogEntry(t, 2*i+2, "c", db+".$cmd", bson.D{{Key: "frobnicate", Value: "c"}})))
		ok(t, a.entry(t.Context(), oplogEntry(t, 2*i+3, "c", "config.$cmd", bson.D{{Key: "create", Value: "c"}})))
	}
	if lines := strings.Count(log.String(), "frobnicate"); lines != 3 || strings.Contains(log.String(), "create") {
		t.Error(log.String())
	}
}

// TestKnownOfServers: what servers are known to log of their own databases is skipped without a message.
func TestKnownOfServers(t *testing.T) {
	var log bytes.Buffer
	a := offline(discard, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for i, o := range []string{`{"create":"system.users"}`, `{"create":"x","timeseries":{}}`, `{"drop":"x"}`,
		`{"createIndexes":"x","name":"a"}`, `{"collMod":"x"}`, `{"dropIndexes":"x"}`, `{"dropDatabase":1}`,
		`{"renameCollection":"admin.system.users","to":"admin.x"}`, `{"startIndexBuild":"x"}`, `{"dbCheck":"x"}`,
		`{"upgradeDowngradeViewlessTimeseries":"x"}`} {
		for _, db := range []string{"admin", "config", "local"} {
			a.seen = mongo.OpTime{}
			if err := a.entry(t.Context(), oplogEntry(t, uint32(i+2), "c", db+".$cmd", docOf(t, o))); err != nil {
				t.Errorf("%s on %s: %v", o, db, err)
			}
		}
	}
	if log.Len() > 0 || len(a.events) > 0 {
		t.Errorf("%s%+v", log.String(), a.events)
	}
}

func docOf(t testing.TB, text string) (d bson.D) {
	t.Helper()
	ok(t, bson.UnmarshalExtJSON([]byte(text), false, &d))
	return d
}

// TestSeriesWithoutBuckets: a time series whose buckets are not in a collection of their own ends a job that keeps
// it, when it is created and when a change of the feature compatibility version converts it.
func TestSeriesWithoutBuckets(t *testing.T) {
	for o, kind := range map[string]stream.ChangeKind{
		`{"create":"m","timeseries":{"timeField":"t"},"idIndex":{}}`:                            stream.ChangeCreate,
		`{"upgradeDowngradeViewlessTimeseries":"m","isUpgrade":true}`:                           stream.ChangeCollMod,
		`{"upgradeDowngradeViewlessTimeseries":"m","isUpgrade":false,"skipViewCreation":false}`: stream.ChangeCollMod,
	} {
		for db, fails := range map[string]bool{"shop": true, "other": false} {
			for _, within := range []bool{false, true} {
				entry := oplogEntry(t, 2, "c", db+".$cmd", docOf(t, o))
				if within {
					entry = grouped(t, 2, []bson.D{groupedOp("c", db+".$cmd", docOf(t, o))}, separately())
				}
				a := offline(discard, Options{Keep: only("shop")})
				err := a.entry(t.Context(), entry)
				if (err != nil) != fails || len(a.events) > 0 || fails == (a.end.TS == ts(2)) {
					t.Errorf("%s of %s: %v", o, db, err)
				}
				if fails && (!strings.Contains(err.Error(), "shop.m") || !strings.Contains(err.Error(), "system.buckets") ||
					!strings.Contains(mongo.HintOf(err), "--exclude shop.m")) {
					t.Errorf("%v, hint %q", err, mongo.HintOf(err))
				}
				in := newInterpreter(&mongo.Cluster{}, Options{Keep: func(string) bool { return false }})
				in.namesAlone = true
				e, err := parseEntry(entry)
				ok(t, err)
				var seen []stream.Change
				ok(t, in.each(t.Context(), &e, func(ev *stream.Event) error { seen = append(seen, *ev.Change); return nil }))
				if len(seen) != 1 || seen[0].Kind != kind || seen[0].NS != db+".m" {
					t.Errorf("%s: who asks for all changes learns %+v", o, seen)
				}
			}
		}
	}
}

// TestRecordIDs: the record ids that a source replicates change no event.
func TestRecordIDs(t *testing.T) {
	rid := bson.E{Key: "rid", Value: int64(7)}
	diff := bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "i", Value: bson.D{{Key: "x", Value: 1}}}}}}
	key := bson.E{Key: "o2", Value: doc(1)}
	ops := []bson.D{groupedOp("i", "d.c", doc(2), rid), groupedOp("d", "d.c", doc(2), rid)}
	got, _ := assembled(t, mongo.Version{Major: 9}, Options{},
		oplogEntry(t, 2, "i", "d.c", doc(1), rid), oplogEntry(t, 3, "u", "d.c", diff, key, rid),
		oplogEntry(t, 4, "d", "d.c", doc(1), rid), grouped(t, 5, ops, separately()), grouped(t, 6, ops, inSession(1)...))
	for i := range ops {
		ops[i] = ops[i][:len(ops[i])-1]
	}
	want, _ := assembled(t, mongo.Version{Major: 9}, Options{},
		oplogEntry(t, 2, "i", "d.c", doc(1)), oplogEntry(t, 3, "u", "d.c", diff, key),
		oplogEntry(t, 4, "d", "d.c", doc(1)), grouped(t, 5, ops, separately()), grouped(t, 6, ops, inSession(1)...))
	kit.SameLines(t, withAt([]*stream.Batch{{Events: got}}), withAt([]*stream.Batch{{Events: want}}))
}

// TestGroupedWrites: operations that a server groups outside of transactions are the events of the same
// operations in entries of their own, in order, at the position of the group. They belong to no transaction,
// whichever session wrote them, and do not touch one that is open.
func TestGroupedWrites(t *testing.T) {
	testseed.Each(t, func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		for range 100 {
			groupedWrites(t, rng)
		}
	})
}

func groupedWrites(t *testing.T, rng *rand.Rand) {
	var ops []bson.D
	var single []bson.Raw
	session := []bson.E(nil)
	if rng.IntN(2) == 0 {
		session = inSession(1)
	}
	for i := range 2 + rng.IntN(8) {
		op, ns, more := "i", []string{"kept.c", "kept.d", "other.c"}[rng.IntN(3)], []bson.E{}
		o := doc(rng.IntN(3), "x", i)
		switch rng.IntN(4) {
		case 0:
			op, o = "d", doc(rng.IntN(3))
		case 1:
			op = "u"
			o = bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "i", Value: bson.D{{Key: "x", Value: i}}}}}}
			more = append(more, bson.E{Key: "o2", Value: doc(rng.IntN(3))})
		case 2:
			if rng.IntN(3) == 0 {
				op, ns, o = "c", "kept.$cmd", bson.D{{Key: "create", Value: fmt.Sprint("new", i)}}
			}
		}
		ops = append(ops, groupedOp(op, ns, o, more...))
		single = append(single, oplogEntry(t, uint32(i)+5, op, ns, o, append(slices.Clone(session), more...)...))
	}
	open := grouped(t, 3, []bson.D{groupedOp("i", "kept.c", doc("open"))}, inSession(2,
		bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}})...)
	open = kit.Raw(partial(t, open))
	more := append(slices.Clone(session), separately())
	if session != nil {
		more = append(more, before(2)) // the session's earlier write is no part of it
	}
	v := newerVersions()[rng.IntN(5)]
	o := Options{Keep: only("kept"), BatchBytes: 1 + rng.IntN(400)}
	got, last := assembled(t, v, o, open, grouped(t, 4, ops, more...))
	want, _ := assembled(t, v, o, append([]bson.Raw{open}, single...)...)
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i := range got {
		g, w := got[i], want[i]
		if g.At.TS != ts(4) || g.Txn != nil || g.Wall != w.Wall || format(g) != format(w) || g.Kind != w.Kind {
			t.Fatalf("%s, session %v: event %d is %s %+v, want %s %+v", v, session != nil, i, format(g), g, format(w), w)
		}
	}
	if last.End.TS != ts(4) || openAt(t, last).TS != ts(3) {
		t.Errorf("the group ends at %s, %s", last.End, last.Mark)
	}
}

// partial makes an entry one of a transaction that goes on.
func partial(t testing.TB, entry bson.Raw) bson.D {
	t.Helper()
	var d bson.D
	ok(t, bson.Unmarshal(entry, &d))
	for i := range d {
		if d[i].Key == "o" {
			d[i].Value = append(d[i].Value.(bson.D), bson.E{Key: "partialTxn", Value: true})
		}
	}
	return d
}

// TestGroupInParts: a restart within a group that needs several batches delivers all of it again.
func TestGroupInParts(t *testing.T) {
	var ops []bson.D
	for i := range 50 {
		ops = append(ops, groupedOp("i", "d.c", doc(i, "x", strings.Repeat("x", 100))))
	}
	var bs []*stream.Batch
	a := offline(func(_ context.Context, b *stream.Batch) error { bs = append(bs, b); return nil },
		Options{BatchBytes: 1000})
	ok(t, a.entry(t.Context(), oplogEntry(t, 2, "n", "", bson.D{})))
	ok(t, a.entry(t.Context(), grouped(t, 3, ops, inSession(1, separately(), before(2))...)))
	ok(t, a.flush(t.Context(), false, false))
	checkBatches(t, bs, stream.Position{})
	if len(bs) < 5 || len(events(bs)) != 50 {
		t.Fatalf("%d batches of %d events", len(bs), len(events(bs)))
	}
	for i, b := range bs {
		if partial := len(b.Events) > 0 && b.Events[0].At != b.End; partial != b.Partial || partial == (b.End.TS == ts(3)) {
			t.Errorf("batch %d: partial %v, end %s", i, b.Partial, b.End)
		}
	}
}

// TestFlaggedGroup: what a migration groups is left out where migrations are; a flag of the entry alone, and not of
// an operation, leaves open what that is.
func TestFlaggedGroup(t *testing.T) {
	flag := bson.E{Key: "fromMigrate", Value: true}
	all := []bson.D{groupedOp("i", "d.c", doc(1), flag), groupedOp("d", "d.c", doc(2), flag)}
	some := []bson.D{all[0], groupedOp("d", "d.c", doc(3))}
	for _, c := range []struct {
		skip   bool
		ops    []bson.D
		outer  []bson.E
		events int
		fails  bool
	}{
		{true, all, nil, 0, false}, {true, all, []bson.E{flag}, 0, false}, {true, some, nil, 1, false},
		{true, some, []bson.E{flag}, 0, true}, {false, some, []bson.E{flag}, 2, false},
	} {
		entry := grouped(t, 2, c.ops, append(c.outer, separately())...)
		a := offline(discard, Options{SkipMigrated: c.skip})
		if err := a.entry(t.Context(), entry); (err != nil) != c.fails || err == nil && len(a.events) != c.events {
			t.Errorf("skip %v, %s: %d events, %v", c.skip, entry, len(a.events), err)
		}
		in := newInterpreter(&mongo.Cluster{}, Options{SkipMigrated: c.skip})
		e, err := parseEntry(entry)
		ok(t, err)
		if err := in.each(t.Context(), &e, func(*stream.Event) error { return nil }); (err != nil) != c.fails {
			t.Errorf("skip %v, %s: %v", c.skip, entry, err)
		}
	}
}

// TestUnknownGroup: how the operations of an entry belong together is known or ends the job.
func TestUnknownGroup(t *testing.T) {
	for _, kind := range []any{int32(2), int64(-1), "1"} {
		err := offline(discard, Options{}).entry(t.Context(), grouped(t, 2, []bson.D{groupedOp("i", "d.c", doc(1))},
			bson.E{Key: "multiOpType", Value: kind}))
		if err == nil || !strings.Contains(err.Error(), "multiOpType") {
			t.Errorf("%v: %v", kind, err)
		}
	}
}
