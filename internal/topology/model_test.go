package topology

import (
	"math"
	"testing"
)

// One set of parameters reproduces every published figure within 15 %, and so
// it does each cell that it has not seen.
func TestModelReproducesPublished(t *testing.T) {
	t.Logf("%+v", FitPublished())
	for _, c := range PublishedFit() {
		t.Logf("%2d members, majority %5v, chaining %5v: %6.0f/s, model %6.0f %+5.1f %%, left out %+5.1f %%; CPU %.0f %%, "+
			"model %3.0f %+5.1f %%, left out %+5.1f %%", c.Members, c.Majority, c.Chaining, c.OpsPerSecond, c.Model, 100*c.Error,
			100*c.LeftOutError, 100*c.CPU, 100*c.ModelCPU, 100*c.CPUError, 100*c.LeftOutCPUError)
		for _, e := range []float64{c.Error, c.CPUError, c.LeftOutError, c.LeftOutCPUError} {
			if math.Abs(e) > 0.15 {
				t.Errorf("%+v is %.1f %% off", c, 100*e)
			}
		}
	}
}

// Where one of off and on was published as clearly faster, the model says the same.
func TestModelHasThePublishedSigns(t *testing.T) {
	p := FitPublished()
	for _, n := range []int{3, 7, 15} {
		set := Hypothetical(Hypothesis{Members: n, Zones: 1})
		off, on := Predict(set, DirectTree(set), p), PredictAutomatic(set, p)
		for _, majority := range []bool{false, true} {
			model := relative(off.W1, on.W1)
			if majority {
				model = relative(off.Majority, on.Majority)
			}
			was, is, ok := PublishedPair(n, majority)
			published := relative(was.OpsPerSecond, is.OpsPerSecond)
			t.Logf("%d members, majority %v: off against on %+.1f %%, published %+.1f %%", n, majority, 100*model, 100*published)
			if !ok || model*published < 0 {
				t.Errorf("%d members, majority %v: off against on %+.1f %%, published %+.1f %%", n, majority, 100*model,
					100*published)
			}
		}
	}
	if _, _, ok := PublishedPair(5, true); ok {
		t.Error("nothing was published of five members")
	}
}

// A closed network has known bounds: with one client there is no queue, and
// with very many the primary is full.
func TestClosedNetwork(t *testing.T) {
	p := Params{Cores: 2, Threads: 1, ClientMillis: 0.5}
	if rate, cpu := p.closed(500, 1); math.Abs(rate-500) > 1e-6 || math.Abs(cpu-0.125) > 1e-9 {
		t.Errorf("one client: %v/s, %v", rate, cpu)
	}
	last := 0.0
	for _, clients := range []float64{1, 2, 4, 8, 100, 100_000} {
		p.Threads = clients
		rate, cpu := p.closed(500, 1)
		if rate < last-1e-6 || cpu > 1 || math.Abs(rate*500/1e6/2-cpu) > 1e-9 {
			t.Errorf("%v clients: %v/s, %v", clients, rate, cpu)
		}
		last = rate
	}
	if math.Abs(last-4000) > 1 {
		t.Errorf("full at %v/s, want 4000", last)
	}
}

// In the published sizes the plan for a write concern is no worse than the
// better of chaining on and off. The one for all concerns is that for majority;
// at w:1 three members under the primary cost what fewer would save.
func TestPlanIsAsGoodAsTheBetterChoice(t *testing.T) {
	p := FitPublished()
	for _, n := range []int{3, 7, 15} {
		out, err := Compare(Hypothetical(Hypothesis{Members: n, Zones: 1}), PlanOptions{}, p)
		if err != nil {
			t.Fatal(err)
		}
		off, on, planned, w1 := out[0].Prediction, out[1].Prediction, out[2].Prediction, out[5].Prediction
		t.Logf("%2d members: off %.0f/%.0f, on %.0f/%.0f, planned %.0f/%.0f (w:1/majority), planned for w:1 %.0f", n, off.W1,
			off.Majority, on.W1, on.Majority, planned.W1, planned.Majority, w1.W1)
		if planned.W1 < 0.88*max(off.W1, on.W1) || planned.Majority < max(off.Majority, on.Majority) {
			t.Errorf("%d members: off %+v, on %+v, planned %+v", n, off, on, planned)
		}
		if w1.W1 < max(off.W1, on.W1, planned.W1) || w1.CPUInner > 0.75 || planned.CPUMajority > off.CPUMajority {
			t.Errorf("%d members: off %+v, on %+v, planned %+v, for w:1 %+v", n, off, on, planned, w1)
		}
	}
}

// For the write concern that it is told, no other number of members under the
// primary is better than the planned one.
func TestPlanForAWriteConcern(t *testing.T) {
	p := FitPublished()
	for n := 3; n <= 15; n++ {
		set := Hypothetical(Hypothesis{Members: n, Zones: 1})
		for _, concern := range []string{"1", Majority} {
			rate := func(o PlanOptions) float64 {
				plan, err := MakePlan(set, o)
				if err != nil {
					t.Fatal(err)
				}
				if err := checkTree(set, plan.Tree()); err != nil {
					t.Errorf("%d members, %+v: %v", n, o, err)
				}
				rate, _ := Predict(set, plan.Tree(), p).For(concern)
				return rate
			}
			planned := rate(PlanOptions{WriteConcern: concern})
			for direct := 1; direct < n; direct++ {
				if other := rate(PlanOptions{WriteConcern: "1", PrimaryFanOut: direct,
					Spare: min(direct, 6) - 1}); other > planned+1 {
					t.Errorf("%d members, %s: planned %.0f, with %d under the primary %.0f", n, concern, planned, direct, other)
				}
			}
		}
	}
}

// Trees that members choose are in the order of what the model expects.
func TestAutomaticTreesInOrder(t *testing.T) {
	p := FitPublished()
	set := Hypothetical(Hypothesis{Members: 7, Zones: 1})
	for _, concern := range []string{"1", Majority} {
		last := 0.0
		for _, share := range []float64{0, 0.25, 0.5, 0.75, 1} {
			tree := AutomaticTree(set, concern, share, p)
			if err := checkTree(set, tree); err != nil {
				t.Error(err)
			}
			rate, _ := Predict(set, tree, p).For(concern)
			t.Logf("w:%s, %.2f: %.0f", concern, share, rate)
			if rate < last {
				t.Errorf("%.2f: %.0f after %.0f", share, rate, last)
			}
			last = rate
		}
	}
}

// Hypothetical sets of all sizes have plans that keep the promises and
// predictions that are numbers.
func TestHypotheticalSets(t *testing.T) {
	p := FitPublished()
	for n := 3; n <= maxMembers; n += 1 + n/8 {
		for zones := 1; zones <= 3; zones++ {
			h := Hypothesis{Members: n, Zones: zones, ZoneMillis: 20, SpreadVoters: n%2 == 0}
			if err := h.Check(); err != nil {
				t.Fatal(err)
			}
			set := Hypothetical(h)
			plan, err := MakePlan(set, PlanOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := checkPlan(set, PlanOptions{}, plan); err != nil {
				t.Errorf("%+v: %v\n%s", h, err, picture(set, plan))
			}
			if out := Predict(set, plan.Tree(), p); out.W1 <= 0 || out.Majority <= 0 || out.CPUMajority > 1 {
				t.Errorf("%+v: %+v", h, out)
			}
		}
	}
	for _, h := range []Hypothesis{{Members: 2, Zones: 1}, {Members: 51, Zones: 1}, {Members: 5, Zones: 4},
		{Members: 5, Voters: 8, Zones: 1}, {Members: 5, Zones: 2, ZoneMillis: -1}} {
		if h.Check() == nil {
			t.Errorf("%+v is taken for possible", h)
		}
	}
}

// Without enough voters there is no majority to wait for.
func TestNoMajority(t *testing.T) {
	p := FitPublished()
	set := Hypothetical(Hypothesis{Members: 3, Zones: 1})
	if out := Predict(set, nil, p); out.Majority != 0 || out.W1 == 0 {
		t.Errorf("%+v", out)
	}
}
