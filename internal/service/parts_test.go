package service

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
)

// TestMergeParts: what shards and routers did adds up by name; those of one span alone are
// rated by the seconds in which they were known; there are never more than job.MaxParts and
// the others.
func TestMergeParts(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	point := func(i int, shards ...string) *Point {
		p := &Point{From: begin.Add(time.Duration(i) * 10 * time.Second), Seconds: 10}
		p.To = p.From.Add(10 * time.Second)
		for _, name := range shards {
			p.Shards = append(p.Shards, Point{Name: name, Seconds: 10, Docs: NewAmount(int64(100*(i+1)), 10),
				Lag: NewRange(float64(i), 10), Window: NewRange(-1, 10)})
			p.Routers = append(p.Routers, Point{Name: name, Seconds: 10, AppliedBytes: NewAmount(50, 10)})
		}
		return p
	}
	first := point(0, "a", "b")
	var all Point
	all.Merge(first)
	all.Merge(point(1, "b", "c"))
	if fmt.Sprint(first.Shards) != fmt.Sprint(point(0, "a", "b").Shards) {
		t.Errorf("what was merged has changed: %+v", first.Shards)
	}
	if len(all.Shards) != 3 || len(all.Routers) != 3 {
		t.Fatalf("%+v", all)
	}
	b, c := all.Shards[1], all.Shards[2]
	if b.Docs != (Amount{300, 10, 20}) || b.Seconds != 20 || b.Lag != (Range{0.5, 0, 1, 20}) || b.Window.Known() ||
		c.Docs.Rate(c.Seconds) != 20 || all.Routers[1].AppliedBytes.Sum != 100 {
		t.Errorf("%+v, %+v", b, c)
	}
	for i := range 200 {
		all.Merge(point(i, fmt.Sprint("s", i)))
	}
	if len(all.Shards) != job.MaxParts+1 || len(all.Routers) != job.MaxParts+1 ||
		all.Shards[job.MaxParts].Name != job.OtherParts {
		t.Fatalf("%d shards, the last %+v", len(all.Shards), all.Shards[len(all.Shards)-1])
	}
	sum := int64(0)
	for _, s := range all.Shards {
		sum += s.Docs.Sum
	}
	if want := int64(2*100 + 2*200 + 100*200*201/2); sum != want {
		t.Errorf("%d documents, want %d", sum, want)
	}
	if rest := all.Shards[job.MaxParts]; rest.Lag.Most != 199 {
		t.Errorf("the others: %+v", rest)
	}
}
