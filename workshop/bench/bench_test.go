package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/workshop/lab"
)

// tiny shows that a scenario works, and nothing of speed.
func tiny() Scale { return Scale{Name: "tiny", Factor: 0.002, Duration: 300 * time.Millisecond} }

// shared is what the tests of the package use together.
var shared struct {
	once           sync.Once
	dir, program   string // the programs are built into dir, unless make test has
	router         string
	source, target *lab.Cluster
	err            error
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, c := range []*lab.Cluster{shared.source, shared.target} {
		if c != nil {
			_ = c.Stop()
		}
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

// servers are two clusters and a millrace to measure.
func servers(t *testing.T) (Servers, string) {
	t.Helper()
	lab.NeedServers(t)
	shared.once.Do(func() {
		var wg sync.WaitGroup
		var errs [3]error
		wg.Go(func() { shared.source, errs[0] = lab.Start(t.Context(), lab.Options{LeanJournal: true}) })
		wg.Go(func() { shared.target, errs[1] = lab.Start(t.Context(), lab.Options{LeanJournal: true}) })
		wg.Go(func() { shared.program, shared.router, errs[2] = build(t) })
		wg.Wait()
		shared.err = errors.Join(errs[:]...)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return Servers{Source: shared.source.URI(), Target: shared.target.URI()}, shared.program
}

func build(t *testing.T) (program, router string, err error) {
	program, router = os.Getenv("MILLRACE_TEST_PROGRAM"), os.Getenv("MILLRACE_TEST_BENCH")
	if program != "" && router != "" {
		return program, router, nil
	}
	if shared.dir, err = os.MkdirTemp("", "millrace-bench-test-"); err != nil {
		return "", "", err
	}
	out, err := exec.Command("go", "build", "-o", shared.dir+"/", "../../cmd/millrace", "../../cmd/millrace-bench").
		CombinedOutput()
	if err != nil {
		t.Logf("%s", out)
	}
	return shared.dir + "/millrace", shared.dir + "/millrace-bench", err
}

// measureTiny runs scenarios once and checks that each contender has worked.
func measureTiny(t *testing.T, o Options) *Report {
	t.Helper()
	given, program := servers(t)
	if o.Servers.Version == "" {
		o.Servers = given
	}
	o.Scale, o.Rounds, o.Millrace, o.Router = tiny(), 1, program, shared.router
	o.Progress = func(line string) { t.Log(line) }
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) == 0 {
		t.Fatal("no cases")
	}
	for _, c := range r.Cases {
		if c.ceiling() == nil {
			t.Errorf("%s has no ceiling", c.Name())
		}
		for _, x := range c.Contenders {
			if len(x.Rounds) != 1 || x.Error != "" || x.How == "" || x.Seconds.Median <= 0 {
				t.Errorf("%s: %s: %+v", c.Name(), x.Name, x)
			}
			if x.Kind == KindMillrace && (x.Peak.Median == 0 || x.Rounds[0].TargetCPU <= 0) {
				t.Errorf("%s: no memory of millrace or no CPU of the target: %+v", c.Name(), x.Rounds[0])
			}
		}
	}
	return r
}

func TestScenarios(t *testing.T) {
	t.Parallel() // it mostly waits for servers
	for _, s := range Scenarios() {
		switch s.Name {
		case "full-cold", "full-files", "full-wan", "full-wan-narrow", "incr-wan", "topology", "seed", "full-sharded",
			"incr-sharded", "latency-sharded", "service":
			// They need servers of their own.
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			lab.Share(t, 3)
			measureTiny(t, Options{Scenarios: []string{s.Name}})
		})
	}
}

func TestScenariosWithServersOfTheirOwn(t *testing.T) {
	lab.Nightly(t)
	t.Parallel() // it mostly waits for servers
	measureTiny(t, Options{Scenarios: []string{"full-cold", "full-wan", "full-wan-narrow", "incr-wan"},
		Servers: Servers{Version: "6.0"}})
}

func TestSecondaryAsPeer(t *testing.T) {
	lab.Nightly(t)
	t.Parallel() // it mostly waits for servers
	r := measureTiny(t, Options{
		Scenarios: []string{"full-one", "incr-backlog"}, Servers: Servers{Version: "6.0"},
		Peers: []Peer{{Name: peerSecondary}},
	})
	for _, c := range r.Cases {
		if last := c.Contenders[len(c.Contenders)-1]; last.Name != peerSecondary {
			t.Errorf("%s has no secondary: %+v", c.Name(), last)
		}
	}
}

// Onto three members all end when a majority has everything.
func TestThreeMembers(t *testing.T) {
	lab.Nightly(t)
	t.Parallel() // it mostly waits for servers
	r := measureTiny(t, Options{
		Scenarios: []string{"full-many", "incr-backlog"}, Servers: Servers{Version: "6.0", TargetTopology: "rs:3"},
		Variants: []Variant{{"source spared", []string{"--source-load=low"}}},
	})
	for _, c := range r.Cases {
		if _, ok := c.ceiling().Rounds[0].Parts[partMajority]; !ok {
			t.Errorf("%s: the ceiling waits for no majority: %+v", c.Name(), c.ceiling().Rounds[0])
		}
		if last := c.Contenders[len(c.Contenders)-1]; last.Name != "millrace, source spared" ||
			!strings.Contains(last.How, "--source-load=low") {
			t.Errorf("%s has no millrace that spares the source: %+v", c.Name(), last)
		}
		for _, x := range c.Contenders {
			points := x.Rounds[0].Series
			last := points[len(points)-1]
			if len(points) == 1 { // the round was over at once
				continue
			}
			if last.Changed == 0 && x.Name != "no oplog" || x.Kind == KindMillrace && last.CPU == 0 ||
				last.TargetReceived == 0 || last.SourceSent == 0 {
				t.Errorf("%s: %s: nothing moves in %+v", c.Name(), x.Name, points)
			}
		}
	}
}

// TestFullFiles: three members are made of files, complete, and their servers are gone afterwards.
func TestFullFiles(t *testing.T) {
	lab.Nightly(t)
	r := measureTiny(t, Options{Scenarios: []string{"full-files"}, Servers: Servers{Version: "6.0"}})
	by := r.Cases[0].contender("millrace, by files")
	for _, value := range []string{valueLocked, "largest process MB"} {
		if by.Values[value].Median <= 0 {
			t.Errorf("no %s: %+v", value, by)
		}
	}
}

func TestGivenClustersAreNotStopped(t *testing.T) {
	given, program := servers(t)
	for _, name := range []string{"full-cold", "full-files", "full-wan", "full-wan-narrow", "incr-wan", "seed",
		"service"} {
		_, err := Run(t.Context(), Options{Scenarios: []string{name}, Scale: tiny(), Rounds: 1, Millrace: program,
			Servers: given})
		if err == nil || !strings.Contains(err.Error(), "given clusters") {
			t.Errorf("%s on given clusters: %v", name, err)
		}
	}
}

// TestCeilingThatDidNotDoTheWork ends the run.
func TestCeilingThatDidNotDoTheWork(t *testing.T) {
	given, _ := servers(t)
	_, err := Run(t.Context(), Options{Scenarios: []string{"full-one"}, Scale: tiny(), Rounds: 1, Millrace: "/bin/true",
		Servers: given})
	if err == nil {
		t.Error("a millrace that copies nothing was measured")
	}
}

func TestUsage(t *testing.T) {
	if _, err := Run(t.Context(), Options{Scenarios: []string{"full-none"}, Rounds: 1}); err == nil ||
		!strings.Contains(err.Error(), "full-one") {
		t.Errorf("unknown scenario: %v", err)
	}
	if _, err := Run(t.Context(), Options{Scenarios: []string{"all"}}); err == nil {
		t.Error("no rounds")
	}
	if s, err := ParseScale("2.5"); err != nil || s.of(1000) != 2500 {
		t.Errorf("scale 2.5: %+v, %v", s, err)
	}
	for _, bad := range []string{"-1", "0", "NaN", "Inf", "1001"} {
		if _, err := ParseScale(bad); err == nil {
			t.Errorf("scale %s was accepted", bad)
		}
	}
	if _, err := ParseScale("huge"); err == nil {
		t.Error("unknown scale")
	}
	for _, p := range []string{"nobody=/bin/true", "pcsm", "pcsm=/no/such/program", "mongodump=/bin/true",
		"secondary=/bin/true"} {
		if _, err := ParsePeer(p); err == nil {
			t.Errorf("peer %q is taken", p)
		}
	}
	if p, err := ParsePeer("secondary"); err != nil || p.Name != peerSecondary {
		t.Errorf("secondary: %v", err)
	}
}

func TestReport(t *testing.T) {
	series := []Point{
		{Seconds: 0, Resident: 1e6}, {Seconds: 0.5, Rate: 10, Resident: 2e6, Changed: 5, CPU: 0.1, SourceSent: 2e6,
			TargetReceived: 1e6},
		{Seconds: 1, Rate: 20, Resident: 3e6, Changed: 20, CPU: 0.3, SourceSent: 5e6, TargetReceived: 4e6},
	}
	r := &Report{Scale: tiny(), Rounds: 1, Cases: []Case{{
		Scenario: "full-one", Work: "<b>", Unit: "documents", Count: 10,
		Contenders: []Contender{
			{Name: "ceiling", Kind: KindCeiling, Rounds: []Round{{Seconds: 1, Series: series}}},
			{Name: "<millrace>", Kind: KindMillrace,
				Rounds: []Round{{Seconds: 2, Series: series, Values: map[string]float64{"x ms": 3}}}},
			{Name: "peer", Kind: KindPeer, Error: "it broke"},
		},
	}}}
	r.Cases[0].summarize()
	var text, page, raw bytes.Buffer
	if err := WriteText(&text, r); err != nil {
		t.Fatal(err)
	}
	if err := WriteHTML(&page, r); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(&raw).Encode(r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"full-one", "0.500", "it broke", "x ms"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("text lacks %q:\n%s", want, &text)
		}
	}
	if n := strings.Count(page.String(), "<svg"); n != 6 {
		t.Errorf("%d charts, want the rates and five curves", n)
	}
	for _, bad := range []string{"<b>", "<millrace>", "<script", "<link", "src=", "url("} {
		if strings.Contains(page.String(), bad) {
			t.Errorf("page has %q", bad)
		}
	}
}

func TestPictures(t *testing.T) {
	of := func(name string, ratio float64) Case {
		return Case{Scenario: name, Contenders: []Contender{
			{Name: "ceiling", Kind: KindCeiling, Rate: Stat{Median: 10}, OfCeiling: Stat{Median: 1}},
			{Name: "millrace", Kind: KindMillrace, Rate: Stat{Median: 10 * ratio}, OfCeiling: Stat{Median: ratio}},
		}}
	}
	one, other := &Report{Rounds: 3, Cases: []Case{of("full-one", 0.5)}},
		&Report{Rounds: 2, Cases: []Case{of("idle", 0.9)}}
	r, err := Join([]*Report{one, other})
	if err != nil || len(r.Cases) != 2 || r.Rounds != 2 || len(one.Cases) != 1 {
		t.Fatalf("Join = %+v, %v", r, err)
	}
	for name, want := range map[string][]string{"": {"full-one", "idle"}, "idle": {"ceiling", "millrace"}} {
		var b strings.Builder
		if err := WriteSVG(&b, r, name); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(b.String(), w) {
				t.Errorf("the picture of %q lacks %q", name, w)
			}
		}
	}
	if err := WriteSVG(io.Discard, r, "full"); err == nil || !strings.Contains(err.Error(), "it has full-one, idle") {
		t.Errorf("an unknown case: %v", err)
	}
	other.Machine.Cores = 2
	if _, err := Join([]*Report{one, other}); err == nil {
		t.Error("reports of different machines are joined")
	}
}
