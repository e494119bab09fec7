package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/topology"
	"github.com/millrace/millrace/workshop/lab"
	load "github.com/millrace/millrace/workshop/ycsb"
)

// forest is a replica set that is measured with one tree after the other.
type forest struct {
	o        TopologyOptions
	n        int // members
	rtt      time.Duration
	voters   int
	duration time.Duration
	params   topology.Params // for as many clients and cores, and the round trip, as here
	noise    []byte
	log      *slog.Logger

	st      *site // source and target are the set
	side    *side
	primary int // number of the member that is to stay primary
	// Each is used by one goroutine at a time: to arrange the set, to watch it,
	// and by a hold.
	observer, watcher, holder *topology.Observer
	// primaryOn and othersOn are the processors that the primary has to itself
	// and those of all others; primaryOn is empty when all share all.
	primaryOn, othersOn []int
	unlimit             func() error // takes the primary's limit back
}

const mostVoters = 7

// openForest starts a set.
func (b *bench) openForest(ctx context.Context, o TopologyOptions, n int, rtt time.Duration) (f *forest, err error) {
	s := &side{}
	f = &forest{o: o, n: n, rtt: rtt, voters: min(n, mostVoters), duration: treeTime(b.o.Scale), params: topology.FitPublished(), noise: load.NewNoise(),
		log: b.o.Log, st: &site{source: s, target: s}, side: s}
	f.params.Threads, f.params.HopMillis = float64(o.Clients), f.params.HopMillis+millis(rtt)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	cache := 0.25
	switch {
	case n <= 3:
		cache = 1
	case n <= 7:
		cache = 0.5
	}
	if err := s.open(ctx, false, lab.Options{Version: b.o.Servers.Version, Topology: "rs:" + itoa(n), CacheGB: cache, PeerLatency: rtt, Logger: b.o.Log}); err != nil {
		return f, err
	}
	if f.primary, err = s.lab.Primary(ctx); err != nil {
		return f, err
	}
	for _, to := range []**topology.Observer{&f.observer, &f.watcher, &f.holder} {
		if *to, err = topology.Open(s.uri, 10*time.Second); err != nil {
			return f, err
		}
		(*to).Lean()
	}
	if err := f.configure(ctx); err != nil {
		return f, err
	}
	return f, f.bind()
}

func (f *forest) close() error {
	for _, o := range []*topology.Observer{f.observer, f.watcher, f.holder} {
		if o != nil {
			o.Close()
		}
	}
	var err error
	if len(f.primaryOn) > 0 {
		err = bindProcess(os.Getpid(), slices.Concat(f.primaryOn, f.othersOn))
	}
	err = errors.Join(err, f.side.close())
	if f.unlimit != nil {
		err = errors.Join(err, f.unlimit())
	}
	return err
}

// configure hides the last voter, keeps the primary in its place, and takes
// back what the lab does to have elections soon.
func (f *forest) configure(ctx context.Context) error {
	hidden := f.voters - 1
	if hidden == f.primary {
		hidden--
	}
	err := f.side.reconfigure(ctx, func(c *setConfig) error {
		c.Members[hidden]["hidden"], c.Members[hidden]["priority"] = true, 0
		c.Members[f.primary]["priority"] = 10
		c.Settings["electionTimeoutMillis"], c.Settings["heartbeatIntervalMillis"] = 30_000, 2000
		return nil
	})
	if err != nil {
		return fmt.Errorf("configure the set: %w", err)
	}
	return nil
}

// bind gives the primary processors of its own, as far as there are enough, and
// limits it to its share of them.
func (f *forest) bind() error {
	all, err := processors()
	if err != nil || f.o.PrimaryCores == 0 || len(all) <= f.o.PrimaryCores {
		f.othersOn = all
		f.params.Cores = float64(max(len(all), 1))
		return nil //nolint:nilerr // where processes cannot be bound, all share all, and the notes say so
	}
	f.primaryOn, f.othersOn = all[:f.o.PrimaryCores], all[f.o.PrimaryCores:]
	f.params.Cores = float64(len(f.primaryOn))
	if err := bindProcess(os.Getpid(), f.othersOn); err != nil {
		return err
	}
	for i, m := range f.side.lab.Members() {
		on := f.othersOn
		if i == f.primary {
			on = f.primaryOn
		}
		if err := bindProcess(m.Pid(), on); err != nil {
			return err
		}
	}
	if f.o.PrimaryShare < 1 {
		f.params.Cores *= f.o.PrimaryShare
		if f.unlimit, err = lab.LimitProcess(f.side.lab.Members()[f.primary].Pid(), f.params.Cores); errors.Is(err, lab.ErrNoQuota) {
			err = mongo.WithHint(err, "without quotas use --primary-share 1")
		}
	}
	return err
}

// lagSamples are how far members were behind, by host.
type lagSamples struct {
	f      *forest
	cancel context.CancelFunc
	wg     sync.WaitGroup

	byHost map[string][]float64
	worst  []float64 // of each look
	err    error
}

// watchLag looks at all members until it is stopped.
func (f *forest) watchLag(ctx context.Context) *lagSamples {
	ctx, cancel := context.WithCancel(ctx)
	l := &lagSamples{f: f, cancel: cancel, byHost: map[string][]float64{}}
	l.wg.Go(func() {
		for tick(ctx, lagEvery) {
			set, err := f.watcher.Observe(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				l.err = err
				return
			}
			l.add(set)
		}
	})
	return l
}

func (l *lagSamples) add(set *topology.Set) {
	worst := 0.0
	for _, m := range set.Members {
		if m.State == topology.StateSecondary && m.LagApplied >= 0 {
			l.byHost[m.Host] = append(l.byHost[m.Host], m.LagApplied)
			worst = max(worst, m.LagApplied)
		}
	}
	l.worst = append(l.worst, worst)
}

// stop ends watching and looks once more.
func (l *lagSamples) stop() (*topology.Set, error) {
	ctx := context.Background()
	l.cancel()
	l.wg.Wait()
	if l.err != nil {
		return nil, fmt.Errorf("watch the members: %w", l.err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	set, err := l.f.watcher.Observe(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the members: %w", err)
	}
	return set, nil
}

// lag notes how far the members were behind, and the tree under their short
// names.
func (f *forest) lag(m *meter, l *lagSamples, after *topology.Set) {
	short := map[string]string{}
	for _, x := range after.Members {
		short[x.Host] = "m" + itoa(x.ID)
	}
	set, end := *after, 0.0
	set.Members = slices.Clone(after.Members)
	var members []MemberLag
	for i := range set.Members {
		x := &set.Members[i]
		if x.State == topology.StateSecondary {
			samples := append(l.byHost[x.Host], x.LagApplied)
			members = append(members, MemberLag{short[x.Host], median(samples), slices.Max(samples), x.LagApplied})
			end = max(end, x.LagApplied)
		}
		x.Host, x.Source, x.Ping = short[x.Host], short[x.Source], nil
	}
	m.value(lagRunning, median(l.worst))
	m.value(lagAtEnd, end)
	m.set(func(r *Round) { r.Tree, r.Members = &set, members })
}
