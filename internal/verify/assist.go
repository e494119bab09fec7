package verify

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/pace"
)

// idle is how long an assistant stays with nothing to read: the next collection may have
// something.
const idle = 3 * time.Second

// Assist reads slices for a comparison that another process makes, which ask reaches, until
// there are no more for a while. spec is that of the comparison. An error says why it has
// ended before; what was assigned is then read elsewhere. Nothing is written anywhere.
func Assist(ctx context.Context, spec Spec, worker, version string, ask assign.Ask) error {
	spec.Options = spec.withDefaults()
	j := assign.Joining{Worker: worker, Version: version, Ask: ask, Rules: spec.Rules, Log: spec.Log, Idle: idle}
	return assign.Assist(ctx, j, func(ctx context.Context, a *assisted) error {
		parts := a.Group("")
		first, err := parts.First(ctx)
		if err != nil || first == nil {
			return err
		}
		sides, err := spec.connect(ctx)
		if err != nil {
			return err
		}
		defer closeAll(sides)
		if err := a.CheckClusters(sides[source], sides[target]); err != nil {
			return err
		}
		e := New(sides[source], sides[target], spec.Options)
		g, ctx := errgroup.WithContext(ctx)
		for range max(spec.Workers/2, 1) { // each of them reads as much as is asked for at a time
			g.Go(func() error {
				for {
					p, err := parts.Next(ctx)
					if err != nil || p == nil {
						return err
					}
					if err := e.assist(ctx, a, p); err != nil {
						return err
					}
				}
			})
		}
		return g.Wait()
	})
}

type assisted = assign.Assistant[struct{}, partOf]

// assist reads a part and sends what it sums up to.
func (e *Engine) assist(ctx context.Context, a *assisted, p *partOf) error {
	if p.Side != source && p.Side != target || p.Groups < 1 || p.Groups > mostGroups || p.Groups&(p.Groups-1) != 0 {
		return fmt.Errorf("a part of side %d with %d groups", p.Side, p.Groups)
	}
	for at := &e.at[p.Side]; ; { // reads see what those of the owner do
		was := at.Load()
		if was != nil && !was.Before(p.At) || at.CompareAndSwap(was, &p.At) {
			break
		}
	}
	pair := Pair{Route: a.Made.Route(p.SourceNS)}
	ns := [...]string{pair.Source, pair.Target}[p.Side]
	var t *table
	err := again(ctx, e.o.Log, "read a part of "+ns, func() error {
		s, err := e.describe(ctx, p.Side, ns)
		if err != nil {
			return err
		}
		s.choose(&pair)
		t = &table{groups: make([]group, p.Groups)}
		return s.scanSlice(ctx, p.Slice, sums{seed: uint64(p.Seed), mask: uint64(p.Groups - 1)}.into(t, &e.c))
	})
	for from := 0; err == nil && from < len(t.groups); {
		end := min(from+pieceGroups, len(t.groups))
		var later bool // sums of somebody else are arriving
		piece := &partSums{ID: p.ID, From: from, Groups: appendGroups(nil, t.groups[from:end]), Docs: t.docs, Bytes: t.bytes}
		if later, err = a.Report(ctx, piece); later {
			err = pace.Pause(ctx, 20*time.Millisecond)
		} else {
			from = end
		}
	}
	return err
}
