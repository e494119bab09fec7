package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/workshop/lab"
)

// From a sharded cluster everything is measured without moves and with them.
func TestShardedSource(t *testing.T) {
	lab.Nightly(t)
	t.Parallel() // it mostly waits for servers
	r := measureTiny(t, Options{
		Scenarios: []string{"full-sharded", "incr-sharded", "latency-sharded"},
		Servers:   Servers{Version: "6.0", SourceTopology: twoShards, TargetTopology: oneMember},
	})
	for _, c := range r.Cases[:2] {
		i := slices.IndexFunc(c.Contenders, func(x Contender) bool { return x.Name == "millrace"+BalancerOn })
		if i < 0 {
			t.Fatalf("%s has no millrace with the balancer on: %+v", c.Name(), c.Contenders)
		}
		if on := c.Contenders[i].Values; on[movesEach].Median < 1 || on[ofBalancerOff].Median <= 0 {
			t.Errorf("%s: nothing moved, or nothing was compared: %+v", c.Name(), on)
		}
		if have := strings.Join(must(c.table())[0], ","); !strings.Contains(have, ofBalancerOff) {
			t.Errorf("%s: the table has the columns %s", c.Name(), have)
		}
	}
}

func must(header []string, rows [][]string) [][]string { return append([][]string{header}, rows...) }

// What lean writers get through the routers is counted at each of them.
func TestCountsAtRouters(t *testing.T) {
	t.Parallel() // it mostly waits for servers
	_, program := servers(t)
	b := &bench{o: Options{Millrace: program, Router: shared.router, Servers: Servers{Version: "6.0"}}, report: &Report{},
		dir: t.TempDir()}
	st, err := b.open(t.Context(), needs{sourceCacheGB: 0.25, targetCacheGB: 0.25, pairing: pairing{oneMember, twoShards}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, d, m := t.Context(), dataset{ycsb(), 4000, 1}, &meter{}
	if err := st.target.create(ctx, 1, nil); err != nil {
		t.Fatal(err)
	}
	err = counted(ctx, st, m, func() error {
		return insert(ctx, st.target, dataDB, d, settings{connections: 4, batchBytes: 64 << 10, majority: true})
	})
	if err == nil {
		err = st.target.holds(ctx, "the target", d)
	}
	if err != nil {
		t.Fatal(err)
	}
	one, two := m.round.Values[RouterRate(1)], m.round.Values[RouterRate(2)]
	if all := m.round.Values[routersTotal]; one <= 0 || two <= 0 || one+two < 0.99*all || one+two > 1.01*all {
		t.Errorf("routers took %v and %v of %v statements a second", one, two, all)
	}
}

func TestPairings(t *testing.T) {
	for _, c := range []struct {
		of   Servers
		want []pairing
	}{
		{Servers{}, []pairing{{threeShards, oneMember}, {oneMember, twoShards}, {threeShards, twoShards}}},
		{Servers{SourceTopology: "rs:3"}, []pairing{{"rs:3", twoShards}}},
		{Servers{TargetTopology: "rs:1"}, []pairing{{threeShards, "rs:1"}}},
	} {
		b := &bench{o: Options{Servers: c.of}}
		if have, err := b.pairings(); err != nil || !slices.Equal(have, c.want) {
			t.Errorf("%+v: %v, %v, want %v", c.of, have, err, c.want)
		}
	}
	b := &bench{o: Options{Servers: Servers{Source: "mongodb://a", Target: "mongodb://b"}}}
	if _, err := b.pairings(); err == nil {
		t.Error("chunks of given clusters would be moved")
	}
}
