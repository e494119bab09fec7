package trial

import (
	"context"
	"slices"
)

// Shrinker looks for fewer events that fail.
type Shrinker struct {
	// Fails reports whether a trial fails in the way that is looked for.
	Fails func(context.Context, Trial) bool
	// Tried counts what was tried.
	Tried int
}

// Shrink leaves out events as long as what is left fails, until nothing can be
// left out or ctx is over.
func (s *Shrinker) Shrink(ctx context.Context, t Trial) Trial {
	groups := grouped(t.Events)
	for size := (len(groups) + 1) / 2; size > 0 && ctx.Err() == nil; {
		removed := false
		for from := 0; from < len(groups) && ctx.Err() == nil; {
			left := slices.Concat(groups[:from], groups[min(len(groups), from+size):])
			smaller := t
			smaller.Events = without(t.Events, left)
			s.Tried++
			if s.Fails(ctx, smaller) && ctx.Err() == nil {
				groups, removed = left, true
			} else {
				from += size
			}
		}
		if size > 1 {
			size /= 2
		} else if !removed {
			break
		}
	}
	t.Events = without(t.Events, groups)
	return t
}

// grouped are the numbers of the events, those that belong together in one.
func grouped(events []Event) (out [][]int) {
	place := map[int]int{}
	for i, e := range events {
		at, ok := place[e.With]
		if ok && e.With != 0 {
			out[at] = append(out[at], i)
			continue
		}
		place[e.With] = len(out)
		out = append(out, []int{i})
	}
	return out
}

// without leaves out the events that are in none of the groups.
func without(events []Event, groups [][]int) (out []Event) {
	keep := slices.Concat(groups...)
	slices.Sort(keep)
	for _, i := range keep {
		out = append(out, events[i])
	}
	return out
}
