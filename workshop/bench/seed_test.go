package bench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

// TestSeed measures one case of the matrix with all of its contenders.
func TestSeed(t *testing.T) {
	lab.Nightly(t)
	t.Parallel() // it mostly waits for servers
	r := seedTiny(t, Options{Cells: []string{"2x2"}})
	c := &r.Cases[0]
	if len(c.Contenders) != 3 || len(c.Notes) != 2 || c.ceiling() == nil || c.DataBytes <= 0 || c.DiskBytes <= 0 {
		t.Fatalf("%+v", c)
	}
	measured(t, c)
	var text bytes.Buffer
	if err := WriteText(&text, r); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
}

// TestReseed gives a member of slow disks its data again in both ways: of a set, with
// another index, and of other documents.
func TestReseed(t *testing.T) {
	lab.Nightly(t)
	t.Parallel() // it mostly waits for servers
	r := seedTiny(t, Options{SeedDisk: lab.DiskSpeed{PerSecond: 3600}, Seeds: []SeedSet{{500, 8000, 2, 0},
		{500, 8000, 2, 1}, {600, 500, 1, 2}}})
	if len(r.Cases) != 3 {
		t.Fatalf("%+v", r.Cases)
	}
	for i, want := range []string{"2x0", "2x1", "1x2"} {
		c := &r.Cases[i]
		if c.Variant != want || len(c.Contenders) != 2 || c.DataBytes <= 0 || c.DiskBytes <= 0 {
			t.Errorf("%+v", c)
		}
		for _, x := range c.Contenders {
			if len(x.Rounds) != 1 || x.Error != "" || x.Seconds.Median <= 0 || x.Rounds[0].TargetCPU <= 0 {
				t.Errorf("%s: %s: %+v", want, x.Name, x)
			}
		}
	}
}

func seedTiny(t *testing.T, o Options) *Report {
	t.Helper()
	_, o.Millrace = servers(t)
	o.Scenarios, o.Scale, o.Rounds, o.Progress = []string{"seed"}, tiny(), 1, func(line string) { t.Log(line) }
	r, err := Run(t.Context(), o)
	if errors.Is(err, lab.ErrNoSlowDisk) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v %s", err, mongo.HintOf(err))
	}
	return r
}

// measured checks the contenders of a case.
func measured(t *testing.T, c *Case) {
	t.Helper()
	for _, x := range c.Contenders {
		if len(x.Rounds) != 1 || x.Error != "" || x.Seconds.Median <= 0 {
			t.Errorf("%s: %+v", x.Name, x)
		}
	}
	for _, x := range c.Contenders {
		if x.Values[valueStall].Median <= 0 {
			t.Errorf("%s: no stall is measured", x.Name)
		}
	}
	two, one := c.contender(seedTwoPass), c.contender(seedOnePass)
	if two.Values[valueLocked].Median <= 0 || one.Values[valueLocked].Median <= 0 || two.Rounds[0].TargetCPU <= 0 ||
		two.Rounds[0].Parts[partListen] <= 0 {
		t.Errorf("%+v\n%+v", one, two)
	}
	var sum float64
	for name, seconds := range two.Rounds[0].Parts {
		if name != partSettle { // in the one before it
			sum += seconds
		}
	}
	if took := two.Rounds[0].Seconds; sum < took*0.98 || sum > took*1.02 {
		t.Errorf("the parts are %.3f s of %.3f s: %v", sum, took, two.Rounds[0].Parts)
	}
}

// TestNoteSeed compares the ways round by round.
func TestNoteSeed(t *testing.T) {
	round := func(s, lock float64) []Round {
		return []Round{{Seconds: s, Values: map[string]float64{valueLocked: lock}}}
	}
	c := Case{Contenders: []Contender{
		{Name: seedOnePass, Kind: KindCeiling, Rounds: round(1, 2)},
		{Name: seedTwoPass, Kind: KindMillrace, Rounds: round(2, 0.1)},
		{Name: seedLogical, Kind: KindPeer, Rounds: round(8, 0)},
	}}
	c.summarize()
	c.noteSeed()
	text := strings.Join(c.Notes, "\n")
	for _, want := range []string{"takes 4.00 times", "5.0 %"} {
		if !strings.Contains(text, want) {
			t.Errorf("the notes lack %q:\n%s", want, text)
		}
	}
}

// TestThirdRandom: documents of all published sizes are of that size, and take a
// third of it on disk, as the published ones did.
func TestThirdRandom(t *testing.T) {
	t.Parallel()
	lab.NeedServers(t)
	w := &seedWork{site: &site{source: &side{}, target: &side{}}}
	if err := w.source.open(t.Context(), false, lab.Options{LeanJournal: true, CacheGB: 0.25}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, size := range []int{500, 3_000, 8_000, 10_000} {
		w.data = dataset{thirdRandom(size), 12_000_000 / size, 1}
		if n := len(w.data.shape.appendDoc(nil, 7, nil)); n != size {
			t.Errorf("a document has %d bytes, not %d", n, size)
		}
		if err := w.source.load(t.Context(), w.data, nil); err != nil {
			t.Fatal(err)
		}
		data, disk, err := w.stored(t.Context())
		if err != nil || data != int64(w.data.docs*size) {
			t.Errorf("%d bytes of data, %v", data, err)
		}
		t.Logf("%d B: %d bytes on disk of %d, %.3f", size, disk, data, float64(disk)/float64(data))
		if share := float64(disk) / float64(data); share < 0.28 || share > 0.39 {
			t.Errorf("%d B: %.3f on disk", size, share)
		}
	}
}

func TestCopyFiles(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	content := append(make([]byte, 3<<20), bytes.Repeat([]byte("millrace"), 2<<20)...)
	for name, b := range map[string][]byte{"a.wt": content, "db/b.wt": []byte("b"), "empty.wt": nil,
		"mongod.lock": []byte("1"), "diagnostic.data/m": []byte("m")} {
		if err := os.MkdirAll(filepath.Join(from, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n, err := copyFiles(context.Background(), from, to)
	if err != nil || n != 16<<20+1 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := syncFiles(to); err != nil {
		t.Error(err)
	}
	for name, want := range map[string][]byte{"a.wt": content, "db/b.wt": []byte("b"), "empty.wt": {}} {
		if b, err := os.ReadFile(filepath.Join(to, name)); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	for _, name := range []string{"mongod.lock", "diagnostic.data"} {
		if _, err := os.Stat(filepath.Join(to, name)); err == nil {
			t.Errorf("%s is copied", name)
		}
	}
}

func TestSeedCells(t *testing.T) {
	all, err := seedCells(nil)
	if err != nil || len(all) != len(seedMatrix()) {
		t.Errorf("%v, %v", all, err)
	}
	got, err := seedCells([]string{"1x5", "100x0"})
	if err != nil || len(got) != 2 || got[0] != (seedCase{1, 5}) || got[1] != (seedCase{100, 0}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "5", "x", "0x1", "1x-1", "1x11", "1x5x2", "9999x1", "1 x 5"} {
		if _, err := seedCells([]string{bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
