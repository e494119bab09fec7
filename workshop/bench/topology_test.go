package bench

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

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
	if v := r.Cases[0].Variant; v != "3-wmajority-1ms" {
		t.Error(v)
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
	if err := WriteText(&text, &again); err != nil || !strings.Contains(text.String(), "─ m2 hidden voter") {
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
