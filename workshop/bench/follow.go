package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// follower starts a tool that copies and then follows until it is ended.
type follower struct {
	name string
	kind Kind
	how  string
	// start returns as soon as the tool runs.
	start func(ctx context.Context, m *meter) (*child, error)
}

// followers are millrace and the peers that can follow.
func (b *bench) followers(st *site) []follower {
	var all []follower
	for _, v := range b.variants() {
		args := append(b.millraceSync(st.rules()...), v.Args...)
		all = append(all, follower{
			name: v.Name, kind: KindMillrace, how: commandLine(args),
			start: func(ctx context.Context, m *meter) (*child, error) {
				c, err := startChild(ctx, program{name: b.o.Millrace, args: args, env: b.clusterEnv(st)})
				if err == nil {
					m.runs(c.pid())
				}
				return c, err
			},
		})
	}
	for _, p := range b.o.Peers {
		if t, _ := p.tool(); t.args != nil {
			all = append(all, b.follow(st, p, t))
		}
	}
	return all
}

// watched is what is done for a time, alone and while a tool follows.
type watched struct {
	alone  func(context.Context, *meter) error
	how    string // of alone
	with   func(context.Context, *meter) error
	seeing string // how it is seen, added to how of the tools
}

// follows measures the source alone, then with each of the tools that follow.
func (b *bench) follows(ctx context.Context, st *site, c Case, w watched) error {
	all := []contender{{name: "ceiling", kind: KindCeiling, how: w.how, prepare: st.restartFollowing, run: w.alone}}
	for _, f := range b.followers(st) {
		all = append(all, contender{
			name: f.name, kind: f.kind, how: f.how + w.seeing, prepare: st.restartFollowing,
			run: func(ctx context.Context, m *meter) error {
				return following(ctx, st, f, m, func(ctx context.Context) error { return w.with(ctx, m) })
			},
		})
	}
	return b.compete(ctx, st, c, all)
}

// followed are the servers of scenarios that go on for a time.
func followed(oplogMB int) needs { return needs{sourceCacheGB: 2, targetCacheGB: 2, oplogMB: oplogMB} }

// restartFollowing makes both sides as they are before a tool begins: the
// collection is there and empty.
func (st *site) restartFollowing(ctx context.Context) error {
	if err := st.source.clear(ctx); err != nil {
		return err
	}
	if err := st.source.create(ctx, 1, nil); err != nil {
		return err
	}
	return st.target.clear(ctx)
}

const coreShare = "% of a core: "

// resting is the experiment of a follower while nothing happens.
type resting struct{}

func (resting) run(ctx context.Context, b *bench, s scenario) error {
	d := b.o.Scale.Duration
	return b.onServers(ctx, s, followed(990), func(st *site) error {
		rest := func(ctx context.Context, m *meter) error {
			err := m.during(ctx, st, func() error {
				tick(ctx, d)
				return ctx.Err()
			})
			if err == nil {
				m.value(coreShare+"tool", m.round.ToolCPU/m.round.Seconds*100)
				m.value(coreShare+"source", m.source.cpu/m.round.Seconds*100)
				m.value(coreShare+"target", m.target.cpu/m.round.Seconds*100)
			}
			return err
		}
		c := Case{Scenario: s.name, Work: "nothing for " + d.String(), Ceiling: s.ceiling, Unit: "operations"}
		return b.follows(ctx, st, c, watched{
			how: "no follower; the bench asks the target for its state twice a second", alone: rest,
			with: func(ctx context.Context, m *meter) error {
				const settle = 2 * time.Second // after what had to be done at the beginning
				if !tick(ctx, settle) {
					return context.Cause(ctx)
				}
				return rest(ctx, m)
			},
		})
	})
}

// following runs do while a tool follows the source and has caught up.
func following(ctx context.Context, st *site, f follower, m *meter, do func(context.Context) error) error {
	return running(ctx, f, m, func(ctx context.Context) error {
		if err := caughtUp(ctx, st); err != nil {
			return err
		}
		return do(ctx)
	})
}

// running starts a tool, runs do and ends the tool. The context of do ends when
// the tool does.
func running(ctx context.Context, f follower, m *meter, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := f.start(ctx, m)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-c.Done():
			cancel(errEnded)
		case <-ctx.Done():
		}
	})
	defer func() {
		if errors.Is(context.Cause(ctx), errEnded) {
			err = nil // stop says why
		}
		cancel(nil)
		wg.Wait()
		err = errors.Join(err, c.stop())
	}()
	return do(ctx)
}

var errEnded = errors.New("the tool ended by itself")

// caughtUp waits until two markers have come through, one after the other, so
// that the second was not copied with the first data.
func caughtUp(ctx context.Context, st *site) error {
	for range 2 {
		mark := bson.NewObjectID()
		if err := setMarker(ctx, st.source, mark); err != nil {
			return err
		}
		if err := awaitMarker(ctx, st.target, mark); err != nil {
			return err
		}
	}
	return nil
}

const markers = "marker"

// setMarker writes a marker on the source.
func setMarker(ctx context.Context, source *side, mark bson.ObjectID) error {
	_, err := source.direct.Client.Database(dataDB).Collection(markers).InsertOne(ctx, bson.D{{Key: "_id", Value: mark}})
	if err != nil {
		return fmt.Errorf("write a marker: %w", err)
	}
	return nil
}

// awaitMarker waits until a marker is on the target.
func awaitMarker(ctx context.Context, target *side, mark bson.ObjectID) error {
	for {
		there, err := hasMarker(ctx, target, mark)
		if there || err != nil && ctx.Err() == nil {
			return err
		}
		if !tick(ctx, 10*time.Millisecond) {
			return fmt.Errorf("wait for a marker: %w", context.Cause(ctx))
		}
	}
}

func hasMarker(ctx context.Context, target *side, mark bson.ObjectID) (bool, error) {
	n, err := target.direct.Client.Database(dataDB).Collection(markers).CountDocuments(ctx, bson.D{{Key: "_id", Value: mark}})
	if err != nil {
		return false, fmt.Errorf("look for a marker: %w", err)
	}
	return n > 0, nil
}
