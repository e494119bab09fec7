package ycsb

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/workshop/lab"
)

func TestMatrix(t *testing.T) {
	b := newBed(t)
	var reported []string
	all, err := RunMatrix(t.Context(), MatrixOptions{Properties: b.props, Mixes: []Mix{{100, 0}, {50, 50}},
		Threads: []int{1, 2}, Each: time.Second, Rounds: 1,
		Progress: func(line string) { reported = append(reported, line) }})
	if err != nil {
		t.Fatal(err)
	}
	m := all.Sides[0]
	if b.count() != 300 || len(reported) != 5 || len(m.Cells) != 4 || m.Load != nil || len(all.Differences) != 0 {
		t.Fatalf("%d documents; %q; %+v", b.count(), reported, m.Cells)
	}
	for _, c := range m.Cells {
		if c.Throughput <= 0 || c.Failed != 0 || (c.RAL > 0) != (c.Mix.Read > 0) || (c.WAL > 0) != (c.Mix.Write > 0) {
			t.Errorf("cell %+v", c)
		}
		// With one operation under way, latencies are what its time is made of.
		if r, w := c.Mix.Read/(c.Mix.Read+c.Mix.Write), c.Mix.Write/(c.Mix.Read+c.Mix.Write); c.Threads == 1 {
			if busy := c.Throughput * (r*c.RAL + w*c.WAL) / 1e6; !(busy > 0 && busy < 1.05) {
				t.Errorf("cell %+v: a thread is busy for %.2f of its time", c, busy)
			}
		}
	}
	text, page := forms(t, all)
	if !strings.Contains(text, "RAL µs") || !strings.Contains(text, "50:50") || strings.Contains(text, "side") ||
		strings.Count(page, "<svg") != 3 {
		t.Errorf("%s\n%d charts", text, strings.Count(page, "<svg"))
	}
}

// forms are a result's text and page.
func forms(t *testing.T, r *Comparison) (text, page string) {
	t.Helper()
	var a, b bytes.Buffer
	if err := errors.Join(r.WriteText(&a), r.WriteHTML(&b)); err != nil {
		t.Fatal(err)
	}
	return a.String(), b.String()
}

// standIn is a script with the command line and the output of the Java tool's,
// played by this test program.
func standIn(t *testing.T) *Peer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "ycsb")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"+standInFor+"=\"$*\" exec \""+self+"\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := ParsePeer("ycsb=" + script)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Two servers and two clients, by count: each mix has so many operations on each
// side, on the same records, and nothing else is left behind.
func TestComparison(t *testing.T) {
	lab.Nightly(t)
	b := newBed(t)
	other := newBed(t)
	o := Published(b.props, 0.0002) // 200 records, 1000 operations
	o.Mixes, o.Threads, o.Peer = []Mix{{100, 0}, {50, 50}}, []int{2}, standIn(t)
	o.Servers = []Server{{Name: "a", URI: b.props["mongodb.url"]}, {Name: "b", URI: other.props["mongodb.url"]}}
	c, err := RunMatrix(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if b.count() != 200 || other.count() != 200 || len(c.Sides) != 4 || len(c.Differences) != 4 {
		t.Fatalf("%d and %d documents, %d sides, %d differences", b.count(), other.count(), len(c.Sides), len(c.Differences))
	}
	for i, m := range c.Sides {
		if want := []string{"a", "a, by ycsb", "b", "b, by ycsb"}[i]; m.label() != want || m.Load == nil ||
			m.Load.Operations != 200 || m.Load.WAL <= 0 || m.Load.RAL != 0 {
			t.Errorf("%s: load %+v", m.label(), m.Load)
		}
		for _, x := range m.Cells {
			if x.Operations != 1000 || x.Failed != 0 || x.ClientSeconds <= 0 || (x.RAL > 0) != (x.Mix.Read > 0) ||
				(x.WAL > 0) != (x.Mix.Write > 0) {
				t.Errorf("%s: %+v", m.label(), x)
			}
		}
	}
	for i, want := range []string{"a, by ycsb against a", "b against a", "b, by ycsb against a, by ycsb",
		"b, by ycsb against b"} {
		if d := c.Differences[i]; d.Other+" against "+d.Base != want || len(d.Cells) != 3 || d.Cells[1].Throughput == nil ||
			d.Cells[1].WAL != nil {
			t.Errorf("%+v", d)
		}
	}
	names, err := b.coll.Database().ListCollectionNames(t.Context(), map[string]any{})
	if err != nil || len(names) != 1 {
		t.Errorf("%v %v", names, err)
	}
	text, page := forms(t, c)
	for _, want := range []string{"recordcount", "operationcount", "throughput (OPS)", "b against a", "load",
		"client CPU s"} {
		if !strings.Contains(text, want) || !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Count(page, "<svg") != 4 {
		t.Errorf("%d charts", strings.Count(page, "<svg"))
	}
}

func TestPeerThatFails(t *testing.T) {
	b := newBed(t)
	script := filepath.Join(t.TempDir(), "ycsb")
	for body, want := range map[string]string{"echo no such thing; exit 3": "no such thing", "echo nothing": "RunTime"} {
		if err := os.WriteFile(script, []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		p, err := ParsePeer("ycsb=" + script)
		if err != nil {
			t.Fatal(err)
		}
		_, err = RunMatrix(t.Context(), MatrixOptions{Properties: b.props, Mixes: []Mix{{1, 1}}, Threads: []int{1},
			Operations: 10, Rounds: 1, Peer: p})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, bad := range []string{"ycsb", "ycsb=", "other=" + script, "ycsb=/not/there", "ycsb=" + t.TempDir()} {
		if _, err := ParsePeer(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestDifferences(t *testing.T) {
	cell := func(ops, ral, wal float64) Cell {
		return Cell{Mix: Mix{95, 5}, Threads: 8, Operations: 1, Throughput: ops, RAL: ral, WAL: wal}
	}
	c := &Comparison{Sides: []*Matrix{{Name: "a", Client: clientMillrace, Cells: []Cell{cell(200, 0, 50)}},
		{Name: "b", Client: clientMillrace, Cells: []Cell{cell(150, 10, 60)}}}}
	c.compare()
	d := c.Differences[0].Cells[0]
	if *d.Throughput != -25 || d.RAL != nil || math.Abs(*d.WAL-20) > 1e-9 || d.ClientCPU != nil ||
		percentText(d.WAL) != "+20.0 %" || percentText(nil) != "" {
		t.Errorf("%+v", d)
	}
}

// What the Java tool prints is read, and properties get to it as they are.
func TestJavaTool(t *testing.T) {
	rep, err := readLines("Loading...\n[OVERALL], RunTime(ms), 2000\n[OVERALL], Throughput(ops/sec), " +
		"500.5\n[TOTAL_GCs], Count, 3\n" +
		"[READ], Operations, 990\n[READ], AverageLatency(us), 12.5\n[READ], 99thPercentileLatency(us), 90\n[READ], " +
		"Return=OK, 990\n[READ], Return=NOT_FOUND, 4\n" +
		"[READ-FAILED], Operations, 4\n[UPDATE], Operations, 6\n[UPDATE], Return=OK, 6\n[CLEANUP], Operations, 2\n")
	if err != nil || rep.Operations != 1000 || rep.Failed != 4 || rep.Seconds != 2 || rep.Throughput != 500.5 ||
		rep.Find("READ").Average != 12.5 || rep.Find("READ").P99 != 90 {
		t.Errorf("%+v %v", rep, err)
	}
	p := Properties{"mongodb.url": `mongodb://u:p%3D\:x@h/?a=b&c=#!`, "exportfile": "x",
		"name with space": " leading and ü"}
	got := Properties{}
	if err := got.Read(bytes.NewReader(p.javaFile())); err != nil {
		t.Fatal(err)
	}
	if got["mongodb.url"] != p["mongodb.url"] || got["exportfile"] != "" ||
		strings.TrimSpace(got["name with space"]) != "leading and ü" || !strings.HasPrefix(got["workload"], "site.ycsb.") {
		t.Errorf("%q", got)
	}
	for in, want := range map[string]string{"mongodb://h": "mongodb://h/db", "mongodb://h/": "mongodb://h/db",
		"mongodb://h,i/other?w=1": "mongodb://h,i/db?w=1", "mongodb://h/?w=1": "mongodb://h/db?w=1"} {
		if got, err := withDatabase(in, "db"); err != nil || got != want {
			t.Errorf("%s: %s %v", in, got, err)
		}
	}
}
