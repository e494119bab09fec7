package history

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// holds reports whether a step mentions all words, in its line.
func holds(s Step, words ...string) bool {
	text := s.String()
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// in reports whether the steps that mention a and b are there, in this order.
func inOrder(steps []Step, words ...string) bool {
	for _, s := range steps {
		if len(words) > 0 && holds(s, words[0]) {
			words = words[1:]
		}
	}
	return len(words) == 0
}

func TestShrinkFindsTheGuiltySteps(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := Generate(Options{Seed: seed, Writers: 3, Parts: []int{20, 40, 60}})
		guilty := []string{"guilty-first", "guilty-second", "guilty-third"}[:1+r.IntN(3)]
		at := 0
		for _, name := range guilty {
			at += r.IntN(len(h.Steps) - at)
			s := inserting(pick(&Generator{r: r}, "plain", "hot"),
				D("_id", 1, "x", A(1, 2, D("y", name, "z", strings.Repeat("z", 50))), "w", 1))
			h.Steps = append(h.Steps[:at], append([]Step{s}, h.Steps[at:]...)...)
			at++
		}
		s := Shrinker{Parallel: 1 + r.IntN(4),
			Fails: func(_ context.Context, steps []Step) bool { return inOrder(steps, guilty...) }}
		got := s.Shrink(t.Context(), h.Steps)
		if len(got) != len(guilty) || !inOrder(got, guilty...) {
			t.Errorf("seed %d: of %d steps with %d guilty ones are left: %v", seed, len(h.Steps), len(guilty), got)
		}
		for _, st := range got {
			if holds(st, "zzz") || holds(st, `"w"`) {
				t.Errorf("seed %d: the value could be simpler: %s", seed, st)
			}
		}
		if s.Tried > 400 {
			t.Errorf("seed %d: tried %d times", seed, s.Tried)
		}
	}
}

// A number of steps that matters is kept, whichever they are.
func TestShrinkKeepsWhatFails(t *testing.T) {
	h := Generate(Options{Seed: 1, Writers: 2, Parts: []int{100}})
	s := Shrinker{Fails: func(_ context.Context, steps []Step) bool { return len(steps) >= 7 }}
	if got := s.Shrink(t.Context(), h.Steps); len(got) != 7 {
		t.Errorf("%d steps are left", len(got))
	}
	s = Shrinker{Fails: func(context.Context, []Step) bool { return false }}
	if got := s.Shrink(t.Context(), h.Steps); len(got) != len(h.Steps) {
		t.Errorf("%d of %d steps are left of what never failed again", len(got), len(h.Steps))
	}
}

// When the time is over, the smallest that failed is returned, and the answer
// of one that was cut short is not believed.
func TestShrinkEndsInTime(t *testing.T) {
	h := Generate(Options{Seed: 1, Writers: 2, Parts: []int{100}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	n := 0
	s := Shrinker{Fails: func(_ context.Context, steps []Step) bool {
		if n++; n == 20 {
			cancel()
			return true
		}
		return len(steps) > 5
	}}
	got := s.Shrink(ctx, h.Steps)
	if n != 20 || len(got) <= 5 || len(got) == len(h.Steps) {
		t.Errorf("%d tries, %d steps", n, len(got))
	}
}
