package trial

import (
	"math/rand/v2"
	"slices"
	"time"
)

// elections has the members of both sides elect others while a job with rules does what users'
// commands want. The source loses nothing by it; the target rolls back what it has
// acknowledged to a job.
func elections(r *rand.Rand) Trial {
	themes := append(commandThemes(), Theme{"retained", retained})
	t := themes[r.IntN(len(themes))].Make(r)
	t.Calm = false
	t.Target = Shape{Members: 3, Proxy: true}
	if r.IntN(2) == 0 {
		t.Source = Shape{Members: 3}
	}
	begun := max(slices.IndexFunc(t.Events, func(e Event) bool { return e.Do == Start }), 0) + 1
	for range 1 + r.IntN(3) {
		at := begun + r.IntN(len(t.Events)-begun+1)
		if t.Source.Members > 0 && r.IntN(3) == 0 {
			t.Events = slices.Insert(t.Events, at, Event{Do: Elect}, Until(Source, "primary"))
			continue
		}
		to := min(at+r.IntN(6), len(t.Events))
		first, last := deposed(r)
		t.Events = slices.Concat(t.Events[:at:at], first, t.Events[at:to], last, t.Events[to:])
	}
	return t
}

// deposed begins and ends what a primary of the target does that will roll back.
func deposed(r *rand.Rand) (first, last []Event) {
	wait := For(between(r, 0, 1500*time.Millisecond))
	switch r.IntN(4) {
	case 0:
		return []Event{{Do: Hold, On: Target}}, []Event{wait, {Do: Down, On: Target}, {Do: Release, On: Target},
			Until(Target, "primary"), wait, {Do: Up, On: Target}}
	case 1:
		return []Event{{Do: Hold, On: Target}},
			[]Event{wait, {Do: StepDown, On: Target}, {Do: Release, On: Target}, Until(Target, "primary")}
	case 2:
		return []Event{{Do: Isolate, On: Target, Alone: r.IntN(2) == 0}},
			[]Event{wait, {Do: Elect, On: Target}, Until(Target, "primary"), wait, {Do: Rejoin, On: Target}}
	}
	return nil, []Event{{Do: Elect, On: Target}, Until(Target, "primary")}
}
