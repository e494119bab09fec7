package bench

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
)

// TestSeed measures one case of the matrix with all of its contenders.
func TestSeed(t *testing.T) {
	t.Parallel() // it mostly waits for servers
	_, program := servers(t)
	o := Options{Scale: tiny(), Rounds: 1, Millrace: program, Progress: func(line string) { t.Log(line) }}
	b := &bench{o: o, report: &Report{Scale: o.Scale, Rounds: 1}}
	err := b.inDirectory(func() error {
		return b.seed(t.Context(), scenario{name: "seed", ceiling: "a copy"}, seedCase{2, 2})
	})
	if err != nil {
		t.Fatalf("%v %s", err, mongo.HintOf(err))
	}
	c := &b.report.Cases[0]
	if len(c.Contenders) != 3 || len(c.Notes) != 2 || c.ceiling() == nil {
		t.Fatalf("%+v", c)
	}
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
	if two.Values[valueLocked].Median <= 0 || one.Values[valueLocked].Median <= 0 || two.Rounds[0].TargetCPU <= 0 || two.part("start") <= 0 {
		t.Errorf("%+v\n%+v", one, two)
	}
}

// TestGrowth draws a matrix in all forms.
func TestGrowth(t *testing.T) {
	r := &Report{Scale: tiny(), Rounds: 1}
	for i, sc := range seedMatrix() {
		round := func(s, lock float64) []Round {
			return []Round{{Seconds: s, Values: map[string]float64{valueLocked: lock}, Parts: map[string]float64{"start": 1}}}
		}
		c := Case{Scenario: "seed", Variant: sc.String(), Unit: "documents", Count: 1, Collections: sc.collections, Indexes: sc.indexes, Contenders: []Contender{
			{Name: seedOnePass, Kind: KindCeiling, Rounds: round(1, 2)},
			{Name: seedTwoPass, Kind: KindMillrace, Rounds: round(2, 0.1)},
			{Name: seedLogical, Kind: KindPeer, Rounds: round(float64(8+i), 0)},
		}}
		c.summarize()
		c.noteSeed()
		r.Cases = append(r.Cases, c)
	}
	var text, page bytes.Buffer
	if err := WriteText(&text, r); err != nil {
		t.Fatal(err)
	}
	if err := WriteHTML(&page, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"takes 4.00 times", "5.0 %", "how both ways"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, &text)
		}
	}
	if !strings.Contains(page.String(), "over collections of five indexes") || !strings.Contains(page.String(), ">6.50<") {
		t.Error("the page lacks the growth")
	}
	if (&Report{Cases: []Case{{Scenario: "full-one"}}}).growth() != nil {
		t.Error("another scenario has a growth")
	}
}

func TestCopyFiles(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	content := append(make([]byte, 3<<20), bytes.Repeat([]byte("millrace"), 2<<20)...)
	for name, b := range map[string][]byte{"a.wt": content, "db/b.wt": []byte("b"), "empty.wt": nil, "mongod.lock": []byte("1"), "diagnostic.data/m": []byte("m")} {
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
