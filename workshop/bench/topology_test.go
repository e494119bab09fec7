package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/topology"
	"github.com/millrace/millrace/workshop/lab"
)

// A set of three is measured in its three trees, and the report has the
// figures, the model and the pictures in all its forms.
func TestTopology(t *testing.T) {
	lab.Nightly(t)
	t.Parallel() // it mostly waits for servers
	lab.NeedServers(t)
	all, err := processors()
	if err != nil {
		t.Log(err)
	}
	r, err := Run(t.Context(), Options{
		Scenarios: []string{"topology"}, Scale: tiny(), Rounds: 1, Servers: Servers{Version: "6.0"},
		Topology: TopologyOptions{WriteConcerns: []string{"majority"}, Clients: 4,
			LinkRTTs: []time.Duration{time.Millisecond}},
		Progress: func(line string) { t.Log(line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if now, err := processors(); err == nil && !slices.Equal(now, all) {
		t.Errorf("the processors of this process are %v, were %v", now, all)
	}
	if len(r.Cases) != 1 || len(r.Cases[0].Contenders) != 3 {
		t.Fatalf("%+v", r)
	}
	if x := r.Cases[0].OffOn; x == nil || x.Members != 3 || x.Gain.Median == 0 || x.Published == nil ||
		x.LinkRTTMillis != 1 {
		t.Errorf("%+v", x)
	}
	for _, x := range r.Cases[0].Contenders {
		direct := 1.0
		if x.Name == "chaining off" {
			direct = 2
		}
		v := x.Values
		switch {
		case len(x.Rounds) != 1, x.Rate.Median <= 0, v[writeAverage].Median <= 0, v[primaryCPU].Median <= 0,
			v[followedRate].Median <= 0, v[primaryEach].Median <= 0, v[modelRate].Median <= 0:
			t.Errorf("%+v", x)
		case x.Name != "chaining on" && v[underPrimary].Median != direct:
			t.Errorf("%s: %v members under the primary", x.Name, v[underPrimary])
		case len(x.Rounds[0].Members) != 2 || len(x.Rounds[0].treePicture()) != 3:
			t.Errorf("%+v", x.Rounds[0])
		}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	var page, text bytes.Buffer
	if err := json.Unmarshal(raw, &again); err != nil {
		t.Fatal(err)
	}
	if err := WriteHTML(&page, &again); err != nil || strings.Count(page.String(), "replication tree of") != 3 {
		t.Errorf("%v\n%s", err, page.String())
	}
	if err := WriteText(&text, &again); err != nil || !strings.Contains(text.String(), "─ m2 hidden voter") ||
		!strings.Contains(text.String(), "-0.7 %") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// Sizes and concerns that make no sense are refused before anything starts.
func TestTopologyOptions(t *testing.T) {
	for _, o := range []TopologyOptions{{Nodes: []int{2}}, {Nodes: []int{51}}, {WriteConcerns: []string{"2"}},
		{Clients: -1}, {PrimaryCores: -1}, {PrimaryCores: 1, PrimaryShare: 1.5}, {PrimaryShare: 0.5},
		{LinkRTTs: []time.Duration{0, -1}}} {
		if _, err := o.complete(); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// However many rounds there are, the trees that are drawn are spread.
func TestSpread(t *testing.T) {
	var got []float64
	for i := range 7 {
		got = append(got, spread(i+1))
	}
	if want := []float64{0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The comparison takes its gains round by round and sets what was published
// beside them.
func TestChainingTable(t *testing.T) {
	round := func(rate int) Round { return Round{Seconds: 1, Done: rate} }
	c := Case{Contenders: []Contender{
		{Name: chainingOff, Kind: KindCeiling, Rounds: []Round{round(120), round(130), round(140)}},
		{Name: chainingOn, Kind: KindCeiling, Rounds: []Round{round(100), round(100), round(100)}},
		{Name: "planned", Kind: KindMillrace, Rounds: []Round{round(130), round(130), round(140)}},
	}}
	c.summarize()
	f := &forest{n: 7, rtt: 100 * time.Microsecond, params: topology.FitPublished()}
	c.OffOn = f.compared(&c, topology.Majority)
	if got, want := c.OffOn.Gain, (Stat{0.3, 0.2, 0.4}); math.Abs(got.Median-want.Median) > 1e-9 ||
		math.Abs(got.Min-want.Min) > 1e-9 || math.Abs(got.Max-want.Max) > 1e-9 {
		t.Errorf("%+v, want %+v", got, want)
	}
	if p := c.OffOn.Published; p == nil || p.OffCPU != 0.85 || p.OnCPU != 0.56 || c.OffOn.Model <= 0 ||
		c.OffOn.ClientsPerCore != 2 {
		t.Errorf("%+v, %+v", c.OffOn, p)
	}
	r := Report{Cases: []Case{{}, c}}
	_, rows := r.chaining().table()
	if text := strings.Join(rows[0], "|"); len(rows) != 1 || !strings.Contains(text, "+30.0 %") ||
		!strings.Contains(text, "+43.5 %") || !strings.Contains(text, "85 / 56 %") {
		t.Error(rows)
	}
	f.n = 5
	if x := f.compared(&c, topology.Majority); x.Published != nil {
		t.Errorf("%+v", x.Published)
	}
	if name := f.variant("1"); name != "5-w1-0.1ms" {
		t.Error(name)
	}
}
