package bench

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/workshop/lab"
)

// A small service is measured: its jobs follow, its memory and its processor time are
// there, and requests were answered.
func TestService(t *testing.T) {
	t.Parallel() // it mostly waits for servers
	lab.NeedServers(t)
	_, program := servers(t)
	o := ServiceOptions{Definitions: 20, Jobs: 3, Workers: 2, Requests: 50, Writes: 20}
	r, err := Run(t.Context(), Options{
		Scenarios: []string{"service"}, Scale: tiny(), Rounds: 1, Servers: Servers{Version: "6.0"}, Service: o,
		Millrace: program,
		Progress: func(line string) { t.Log(line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) != 3 {
		t.Fatalf("%+v", r)
	}
	jobs := &r.Cases[0]
	for _, name := range []string{nothingRuns, jobsIdle, jobsWritten} {
		v := jobs.contender(name).Values
		if v[workersMB].Median < 10 || v[workersMB].Median > 1000 || v[serveMB].Median < 10 || v[workersShare].Median < 0 ||
			v[serveShare].Median < 0 {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if v := jobs.contender(jobsIdle).Values; v[allFollow].Median <= 0 || v[eachMB].Median == 0 {
		t.Errorf("%+v", v)
	}
	if v := jobs.contender(jobsWritten).Values; v[writeRate].Median <= 0 || v[sourceShare].Median <= 0 {
		t.Errorf("%+v", v)
	}
	for _, c := range r.Cases[1:] {
		for _, name := range []string{"livez", "list", "show", "limits"} {
			x := c.contender(name)
			v := x.Values
			if len(x.Rounds) != 1 || x.Rounds[0].Done != 15 || v[p50].Median <= 0 || v[p99].Median < v[p50].Median ||
				v[pMax].Median < v[p99].Median || v[inTime].Median <= 0 {
				t.Errorf("%s: %+v", name, x)
			}
		}
	}
	var text bytes.Buffer
	if err := WriteText(&text, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{eachMB, p99, "list, p99", "meant to be below 50", "meant to be below 12"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &text)
		}
	}
	t.Log(text.String())
}

// Sizes that make no sense are refused before anything starts.
func TestServiceOptions(t *testing.T) {
	for _, o := range []ServiceOptions{{Jobs: -1}, {Jobs: 11, Definitions: 10}, {Definitions: maxDefinitions + 1},
		{Workers: -1}, {Workers: 51}, {Requests: -1}, {Writes: -1}} {
		if _, err := o.complete(); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	if o, err := (ServiceOptions{}).complete(); err != nil || o.Jobs != 100 || o.Definitions != 1000 {
		t.Errorf("%+v, %v", o, err)
	}
}

// Jobs that follow are spread over all definitions, each in a place of its own.
func TestPlaces(t *testing.T) {
	for _, o := range []ServiceOptions{{Definitions: 20, Jobs: 3}, {Definitions: 1000, Jobs: 100},
		{Definitions: 7, Jobs: 7}, {Definitions: 101, Jobs: 100}} {
		f := &fleet{o: o}
		var all []string
		for i := range o.Jobs {
			all = append(all, f.jobName(i))
		}
		if !slices.IsSorted(all) || len(slices.Compact(all)) != o.Jobs || f.place(o.Jobs-1) >= o.Definitions {
			t.Errorf("%+v: %v", o, all)
		}
	}
}

// The addresses are found in a log, however it is cut into pieces.
func TestAnnounced(t *testing.T) {
	log := "no JSON\n{\"msg\":\"workers reach " +
		"NATS\",\"nats\":\"127.0.0.1:1\"}\n{\"console\":\"http://127.0.0.1:2/\"}\n{\"console\":\"http://later/\"}\n" +
		strings.Repeat("x", 2*maxLine)
	for _, size := range []int{1, 7, 1000, len(log)} {
		var a announced
		for part := range slices.Chunk([]byte(log), size) {
			if n, err := a.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		if console, nats := a.addresses(); console != "http://127.0.0.1:2/" || nats != "127.0.0.1:1" {
			t.Errorf("in pieces of %d: %q, %q", size, console, nats)
		}
	}
}

// A figure that reaches what it is meant to stay below has missed it.
func TestVerdict(t *testing.T) {
	for _, x := range []struct {
		median float64
		want   string
	}{{11.9, "held"}, {12, "missed"}, {13, "missed"}} {
		if got := verdict("memory", Stat{x.median, 1, 20}, 12, "MB"); !strings.HasSuffix(got, ": "+x.want) ||
			!strings.Contains(got, "1.00-20.0") {
			t.Errorf("%v: %s", x.median, got)
		}
	}
}
