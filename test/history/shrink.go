package history

import (
	"context"
	"maps"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// Shrinker finds a smaller history that fails like a given one.
type Shrinker struct {
	// Fails reports whether steps fail. It is asked for several at once.
	Fails func(context.Context, []Step) bool
	// Parallel is how many are tried at once, at least 1.
	Parallel int
	// Tried counts what was tried.
	Tried int
}

// Shrink leaves out steps as long as what is left fails, then parts of the
// commands, until nothing can be left out or ctx is over. It never returns steps
// that did not fail, but for those it got.
func (s *Shrinker) Shrink(ctx context.Context, steps []Step) []Step {
	steps = s.collections(ctx, steps)
	steps = s.chunks(ctx, steps)
	return s.values(ctx, steps)
}

// first tries candidates and returns the number of the first that fails, or -1.
func (s *Shrinker) first(ctx context.Context, n int, candidate func(i int) []Step) int {
	for lo := 0; lo < n && ctx.Err() == nil; lo += max(1, s.Parallel) {
		hi := min(lo+max(1, s.Parallel), n)
		failed := make([]bool, hi-lo)
		var wg sync.WaitGroup
		for i := lo; i < hi; i++ {
			steps := candidate(i)
			s.Tried++
			wg.Go(func() { failed[i-lo] = s.Fails(ctx, steps) })
		}
		wg.Wait()
		if ctx.Err() != nil { // what was cut short says nothing
			return -1
		}
		if i := slices.Index(failed, true); i >= 0 {
			return lo + i
		}
	}
	return -1
}

// collections tries to do with the steps of one collection.
func (s *Shrinker) collections(ctx context.Context, steps []Step) []Step {
	count := map[string]int{}
	for _, st := range steps {
		if c := st.Collection(); c != "" {
			count[c]++
		}
	}
	names := slices.SortedFunc(maps.Keys(count), func(x, y string) int { return count[y] - count[x] })
	if len(names) < 2 {
		return steps
	}
	only := func(i int) []Step {
		return slices.DeleteFunc(slices.Clone(steps),
			func(st Step) bool { return st.Collection() != names[i] && st.Collection() != "" })
	}
	if i := s.first(ctx, len(names), only); i >= 0 {
		return only(i)
	}
	return steps
}

// Collection is the name of the collection that the step's command is for, as
// far as the command begins with it.
func (s Step) Collection() string {
	if len(s.Cmd) == 0 {
		return ""
	}
	e, err := s.Cmd.IndexErr(0)
	if err != nil {
		return ""
	}
	name, _ := e.Value().StringValueOK()
	return name
}

// chunks leaves out halves, quarters and so on down to single steps.
func (s *Shrinker) chunks(ctx context.Context, steps []Step) []Step {
	for size := (len(steps) + 1) / 2; size > 0 && ctx.Err() == nil; {
		without := func(i int) []Step {
			return slices.Concat(steps[:i*size], steps[min(len(steps), (i+1)*size):])
		}
		removed := false
		for from := 0; ; {
			n := (len(steps) + size - 1) / size
			i := s.first(ctx, n-from, func(i int) []Step { return without(from + i) })
			if i < 0 {
				break
			}
			steps, from, removed = without(from+i), from+i, true
		}
		if size > 1 {
			size /= 2
		} else if !removed {
			break
		}
	}
	return steps
}

// values makes the commands of the steps simpler.
func (s *Shrinker) values(ctx context.Context, steps []Step) []Step {
	for i := 0; i < len(steps) && ctx.Err() == nil; {
		simpler := steps[i].simpler()
		with := func(j int) []Step {
			out := slices.Clone(steps)
			out[i].Cmd = simpler[j]
			return out
		}
		if j := s.first(ctx, len(simpler), with); j >= 0 {
			steps = with(j)
		} else {
			i++
		}
	}
	return steps
}

// simpler are commands with less in them, the smallest first.
func (s Step) simpler() []bson.Raw {
	var cmd bson.D
	if len(s.Cmd) == 0 || bson.Unmarshal(s.Cmd, &cmd) != nil {
		return nil
	}
	var out []bson.Raw
	add := func(x any) {
		if b, err := bson.Marshal(x); err == nil && len(b) < len(s.Cmd) {
			out = append(out, b)
		}
	}
	if s.Do == Fill {
		var f Filling
		if bson.Unmarshal(s.Cmd, &f) != nil || f.To-f.From <= 1 {
			return nil
		}
		return []bson.Raw{kit.Raw(Filling{f.Coll, f.From, f.From + (f.To-f.From)/2, 0})}
	}
	for i, e := range cmd {
		if i > 0 {
			add(without(cmd, i))
		}
		for _, v := range less(e.Value, 5) {
			x := slices.Clone(cmd)
			x[i].Value = v
			add(x)
		}
	}
	slices.SortStableFunc(out, func(x, y bson.Raw) int { return len(x) - len(y) })
	return out
}

func without[S ~[]E, E any](list S, i int) S { return slices.Concat(list[:i], list[i+1:]) }

// less are the values that leave out one element somewhere, or half of them.
func less(v any, depth int) (out []any) {
	if depth == 0 {
		return nil
	}
	switch v := v.(type) {
	case bson.D:
		for i, e := range v {
			if e.Key != "_id" && e.Key != "q" && e.Key != "u" {
				out = append(out, without(v, i))
			}
			for _, x := range less(e.Value, depth-1) {
				c := slices.Clone(v)
				c[i].Value = x
				out = append(out, c)
			}
		}
	case bson.A:
		if n := len(v); n > 2 {
			out = append(out, v[:n/2:n/2], v[n/2:])
		}
		for i, e := range v {
			out = append(out, without(v, i))
			for _, x := range less(e, depth-1) {
				c := slices.Clone(v)
				c[i] = x
				out = append(out, c)
			}
		}
	}
	return out
}
