package placing

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestParseZones: rules are read, and bad ones are named.
func TestParseZones(t *testing.T) {
	r, err := ParseZones([]string{"EU=s0, s1,s0", "US=none"})
	if err != nil {
		t.Fatal(err)
	}
	eu, _ := r.Of("EU")
	_, other := r.Of("ASIA")
	equal(t, "rules", fmt.Sprint(eu, r.Out("EU"), r.Out("US"), r.Out("ASIA"), other, r.Names()),
		"[s0 s1] false true false false [EU US]")
	for _, text := range []string{"EU", "=s0", "EU=", "EU=s0,"} {
		if _, err := ParseZones([]string{text}); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if _, err := ParseZones([]string{"EU=s0", "EU=s1"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
}

// TestJoin: which shards of a target get into a zone.
func TestJoin(t *testing.T) {
	shard := func(name string, zones ...string) Shard { return Shard{Name: name, Zones: zones} }
	gone := Shard{Name: "s1", Draining: true}
	source := []Shard{shard("s0", "EU", "ALL"), shard("s1", "EU"), shard("s2", "US")}
	for _, c := range []struct {
		what   string
		rules  []string
		target []Shard
		want   string
	}{
		{"by name", nil, []Shard{shard("s0"), shard("s1"), shard("s9")}, "{[] [s0 s1] true}"},
		{"by name, into both zones of the source's", nil, []Shard{shard("s0", "ALL")}, "{[] [s0] true}"},
		{"a namesake that belongs elsewhere", nil, []Shard{shard("s0", "US"), shard("s1")}, "{[] [s1] true}"},
		{"a namesake that leaves", nil, []Shard{gone}, "{[] [] false}"},
		{"others", nil, []Shard{shard("a"), shard("s2")}, "{[] [] false}"},
		{"in it already", nil, []Shard{shard("s0"), shard("a", "EU")}, "{[a] [] false}"},
		{"a rule", []string{"EU=a"}, []Shard{shard("a", "US"), shard("s0")}, "{[] [a] false}"},
		{"a rule beside what is in it", []string{"EU=a,b"}, []Shard{shard("a", "EU"), shard("b"), shard("c", "EU")},
			"{[a c] [b] false}"},
		{"a rule of another zone", []string{"US=a"}, []Shard{shard("a"), shard("s0")}, "{[] [s0] true}"},
	} {
		r, err := ParseZones(c.rules)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, c.what, JoinOf("EU", r, source, c.target), c.want)
	}
}

// TestStretches: zones are kept apart, and each gets ranges by what is in it.
func TestStretches(t *testing.T) {
	pattern, err := bson.Marshal(bson.D{{Key: "k", Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	key := shardkey.Parse(pattern)
	zone := func(from, to any, of ...string) zoned {
		min, _ := bson.Marshal(bson.D{{Key: "k", Value: from}})
		max, _ := bson.Marshal(bson.D{{Key: "k", Value: to}})
		return zoned{schema.Zone{Min: min, Max: max}, of}
	}
	var sample []point
	for i := range 100 {
		sample = append(sample, point{value(i), 1})
	}
	zones := []zoned{zone(int32(10), int32(40), "a"), zone(int32(40), int32(50), "b"),
		zone(int32(200), bson.MaxKey{}, "a", "b")}
	all := stretches(zones, key, []string{"a", "b", "c"})
	cuts, weights, of := cutStretches(all, nil, sample, 10)
	equal(t, "cuts", values(cuts), "[3 7 10 20 30 40 50 60 70 80 90 200]")
	equal(t, "weights", weights, "[3 4 3 10 10 10 10 10 10 10 10 10 0]")
	equal(t, "shards", of, "[[a b c] [a b c] [a b c] [a] [a] [a] [b] [a b c] [a b c] [a b c] [a b c] [a b c] [a b]]")
	cuts, weights, _ = cutStretches(all, []bound{value(20), value(45)}, nil, 3)
	equal(t, "chunks alone", fmt.Sprint(values(cuts), weights), "[10 20 40 45 50 200] [1 1 1 1 1 1 1]")
	whole := stretches([]zoned{zone(bson.MinKey{}, bson.MaxKey{}, "a")}, key, []string{"a", "b"})
	cuts, _, of = cutStretches(whole, nil, nil, 4)
	equal(t, "one zone for all", fmt.Sprint(len(cuts), of), "0 [[a]]")
}

// asZoned wants each chunk of a collection of the target on a shard of its zone, and the
// zones to be those.
func (b *bed) asZoned(name, want string) {
	b.Helper()
	ns := b.database + "." + name
	zones, err := schema.Zones(b.Context(), b.target, []string{ns})
	b.ok(err)
	var have []string
	for _, z := range zones[ns] {
		have = append(have, fmt.Sprint(z.Tag, " ", ends(z.Min), "-", ends(z.Max)))
	}
	if got := strings.Join(have, ", "); got != want {
		b.Errorf("%s has zones %s, want %s", name, got, want)
	}
	list, err := Shards(b.Context(), b.target)
	b.ok(err)
	in := map[string][]string{}
	for _, s := range list {
		in[s.Name] = s.Zones
	}
	entries, err := schema.Entries(b.Context(), b.target, []string{ns})
	b.ok(err)
	chunks, err := New(b.target, Options{}).chunks(b.Context(), entries[ns])
	b.ok(err)
	for _, c := range chunks {
		for _, z := range zones[ns] {
			outside := shardkey.CompareKeys(shardkey.Bound(c.Max), shardkey.Bound(z.Min)) <= 0 ||
				shardkey.CompareKeys(shardkey.Bound(z.Max), shardkey.Bound(c.Min)) <= 0
			if !outside && !slices.Contains(in[c.Shard], z.Tag) {
				b.Errorf("%s: %s to %s is on %s, which is not in zone %s", name, c.Min, c.Max, c.Shard, z.Tag)
			}
		}
	}
}

// ends is a bound for people: its first value.
func ends(b bson.Raw) string {
	v := shardkey.Bound(b)[0]
	if n, ok := v.AsInt64OK(); ok {
		return fmt.Sprint(n)
	}
	return map[bson.Type]string{bson.TypeMinKey: "", bson.TypeMaxKey: ""}[v.Type]
}

// rest wants the balancer to have nothing to do.
func (b *bed) rest(name string) {
	b.Helper()
	raw, err := b.target.Command(b.Context(), "admin",
		bson.D{{Key: "balancerCollectionStatus", Value: b.database + "." + name}})
	b.ok(err)
	if ok, _ := raw.Lookup("balancerCompliant").BooleanOK(); !ok {
		b.Errorf("%s: %s", name, raw)
	}
}

// zone gives a range to a zone of the source or, with a zone of nil, to none.
func (b *bed) zone(c *mongo.Cluster, name string, zone any, from, to bson.D) {
	b.Helper()
	b.command(c, "admin", bson.D{{Key: "updateZoneKeyRange", Value: b.database + "." + name}, {Key: "min", Value: from},
		{Key: "max", Value: to}, {Key: "zone", Value: zone}})
}

// zoneJoins: shards that were chosen for a zone by their names get there, all of them,
// although a job is broken off between them.
func zoneJoins(b *bed, source *sharded.Cluster) {
	names, key := source.ShardNames(), func(k int) bson.D { return bson.D{{Key: "k", Value: k}} }
	b.ok(source.CreateDatabase(b.Context(), b.database, names[0]))
	for _, shard := range names[:2] {
		b.command(b.source, "admin", bson.D{{Key: "addShardToZone", Value: shard}, {Key: "zone", Value: "D"}})
	}
	b.ok(source.ShardCollection(b.Context(), b.database+".c", sharded.Sharding{Key: key(1)}))
	b.zone(b.source, "c", "D", key(0), key(10))
	members := func() (all []string) {
		list, err := Shards(b.Context(), b.target)
		b.ok(err)
		for _, s := range list {
			if slices.Contains(s.Zones, "D") {
				all = append(all, s.Name)
			}
		}
		return all
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	p, joins := b.placer("joins"), 0
	p.step = func(step string) {
		if step == "zone.join" {
			if joins++; joins == 2 { // which is not sent then
				cancel()
			}
		}
	}
	if err := b.create(ctx, p, true); err == nil {
		b.Error("the job was not broken off")
	}
	equal(b.T, "broken off", members(), "[s0]")
	p = b.placer("joins")
	b.ok(b.create(b.Context(), p, true))
	equal(b.T, "gone on", members(), "[s0 s1]")
	b.asZoned("c", "D 0-10")
	b.ok(p.ForgetAll(b.Context()))
}

// zonesCome: collections of a zoned cluster have its zones on the target, with their
// documents there from the start, whatever the steps at which the job is broken off.
func zonesCome(b *bed, source *sharded.Cluster) {
	ctx := b.Context()
	names := source.ShardNames()
	b.ok(source.CreateDatabase(ctx, b.database, names[0]))
	for i, zone := range []string{"A", "B", "C"} {
		b.command(b.source, "admin", bson.D{{Key: "addShardToZone", Value: names[i]}, {Key: "zone", Value: zone}})
	}
	k := func(v any) bson.D { return bson.D{{Key: "k", Value: v}} }
	h := func(v any) bson.D { return bson.D{{Key: "_id", Value: v}} }
	rules := []string{"C=none", "B=s1"} // s1 is in a zone that the source's is not in
	shard := func(name string, s sharded.Sharding) {
		b.ok(source.ShardCollection(ctx, b.database+"."+name, s))
		b.fill(name, 300, func(i int) bson.D {
			return bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "x", Value: i % 7}}
		})
	}
	shard("ranged", sharded.Sharding{Key: k(1)})
	b.zone(b.source, "ranged", "A", k(bson.MinKey{}), k(50))
	b.zone(b.source, "ranged", "B", k(50), k(200))
	b.zone(b.source, "ranged", "C", k(250), k(260))
	shard("hashed", sharded.Sharding{Key: h("hashed")})
	b.zone(b.source, "hashed", "A", h(bson.MinKey{}), h(int64(0)))
	shard("compound", sharded.Sharding{Key: bson.D{{Key: "x", Value: 1}, {Key: "k", Value: 1}}})
	b.zone(b.source, "compound", "B", bson.D{{Key: "x", Value: 2}}, bson.D{{Key: "x", Value: 4}})
	shard("ruled", sharded.Sharding{Key: k(1)})
	b.zone(b.source, "ruled", "A", k(1), k(2))
	shard("later", sharded.Sharding{Key: k(1)})
	shard("foreign", sharded.Sharding{Key: k(1)})
	b.zone(b.source, "foreign", "A", k(10), k(20))
	b.command(b.target, "admin", bson.D{{Key: "addShardToZone", Value: "s1"}, {Key: "zone", Value: "own"}})
	b.zone(b.target, "foreign", "own", k(100), k(120))

	made := func(job string) *Placer {
		p := b.placer(job, b.database+".ruled=x:1,k:1")
		p.o.Source.Zones, _ = ParseZones(rules)
		return p
	}
	steps := 0
	for at := 1; ; at += 7 { // some steps in a job or another
		ctx, cancel := context.WithCancel(ctx)
		n := 0
		p := made("zones")
		p.step = func(string) {
			if n++; n == at {
				cancel()
			}
		}
		err := b.create(ctx, p, true)
		cancel()
		if steps += n; n < at {
			b.ok(err)
			break
		}
	}
	b.Logf("%d steps", steps)
	p := made("zones")
	wants := map[string]string{"ranged": "A -50, B 50-200", "hashed": "A -0", "compound": "B 2-4", "ruled": "",
		"later": "", "foreign": "own 100-120"}
	check := func() {
		b.Helper()
		for name, zones := range wants {
			b.asZoned(name, zones)
		}
	}
	check()
	b.ok(p.Release(ctx))
	for name := range wants {
		b.rest(name)
	}

	// Renamed on both sides; then the source changes its mind.
	pairs := []Pair{}
	for name := range wants {
		pairs = append(pairs, Pair{b.database + "." + name, b.database + "." + name})
	}
	again := func(want string) {
		b.Helper()
		for at := 1; ; at++ {
			ctx, cancel := context.WithCancel(ctx)
			n := 0
			p := made("zones")
			p.step = func(string) {
				if n++; n == at {
					cancel()
				}
			}
			left, err := p.Rezone(ctx, pairs)
			cancel()
			if n < at {
				b.ok(err)
				var texts []string
				for _, l := range left {
					texts = append(texts, l.NS+": "+l.Source+" | "+l.Pair.Target+": "+l.Target)
				}
				if got := strings.Join(texts, ", "); !strings.Contains(got, want) || want == "" && got != "" {
					b.Errorf("left is %q, want %q", got, want)
				}
				break
			}
		}
		check()
	}
	again("")
	b.command(b.source, "admin", bson.D{{Key: "renameCollection", Value: b.database + ".compound"},
		{Key: "to", Value: b.database + ".renamed"}})
	b.command(b.target, "admin", bson.D{{Key: "renameCollection", Value: b.database + ".compound"},
		{Key: "to", Value: b.database + ".moved"}})
	b.ok(p.Move(ctx, b.database+".compound", b.database+".moved"))
	delete(wants, "compound")
	wants["moved"] = "B 2-4"
	pairs = append(pairs, Pair{b.database + ".renamed", b.database + ".moved"})
	again("")
	b.zone(b.source, "ranged", nil, k(bson.MinKey{}), k(50))
	b.zone(b.source, "ranged", "B", k(0), k(50))
	b.zone(b.source, "hashed", nil, h(bson.MinKey{}), h(int64(0)))
	b.zone(b.source, "later", "A", k(5), k(6))
	b.zone(b.target, "moved", "own", bson.D{{Key: "x", Value: 5}}, bson.D{{Key: "x", Value: 6}}) // not ours
	list := bson.D{{Key: "x", Value: 5}}
	b.zone(b.source, "renamed", "A", list, bson.D{{Key: "x", Value: 7}})
	wants["hashed"] = ""
	zones := func(name string) string {
		all, err := schema.Zones(ctx, b.target, []string{b.database + "." + name})
		b.ok(err)
		return ZonesText(all[b.database+"."+name])
	}
	delete(wants, "ranged") // its documents are to move now
	delete(wants, "later")
	delete(wants, "moved")
	again("renamed")
	equal(b.T, "ranged", zones("ranged"),
		`B from {"k": {"$numberInt":"0"}} to {"k": {"$numberInt":"50"}}; B from {"k": {"$numberInt":"50"}} to {"k": {"$numberInt":"200"}}`)
	equal(b.T, "moved", strings.Count(zones("moved"), ";")+1, 2) // ours, and the one in the way of which ours is not set
	equal(b.T, "later", zones("later"), `A from {"k": {"$numberInt":"5"}} to {"k": {"$numberInt":"6"}}`)

	// A zone without shards on the target keeps nothing from coming.
	rules = rules[1:]
	shard("lacking", sharded.Sharding{Key: k(1)})
	b.zone(b.source, "lacking", "C", k(1), k(2))
	b.zone(b.source, "lacking", "A", k(5), k(6))
	b.ok(b.create(ctx, made("zones"), true))
	pairs = append(pairs, Pair{b.database + ".lacking", b.database + ".lacking"})
	wants["lacking"] = "A 5-6"
	again("lacking")

	// A drop takes the zones along.
	b.command(b.target, b.database, bson.D{{Key: "drop", Value: "lacking"}})
	equal(b.T, "dropped", zones("lacking"), "none")
	b.ok(p.ForgetAll(ctx))
	if n, err := p.stored().CountDocuments(ctx, bson.D{{Key: "_id.job", Value: "zones"}}); err != nil || n != 0 {
		b.Errorf("%d notes stay: %v", n, err)
	}
}
