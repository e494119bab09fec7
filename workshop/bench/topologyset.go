package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
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
	// Each is used by one goroutine at a time: to arrange the set, to watch it, and by a hold.
	observer, watcher, holder *topology.Observer
	// primaryOn are the primary's own processors, othersOn the rest; primaryOn is empty when all share all.
	primaryOn, othersOn []int
	unlimit             func() error // takes the primary's limit back
}

const mostVoters = 7

func (b *bench) openForest(ctx context.Context, o TopologyOptions, n int, rtt time.Duration) (f *forest, err error) {
	s := &side{}
	f = &forest{o: o, n: n, rtt: rtt, voters: min(n, mostVoters), duration: treeTime(b.o.Scale),
		params: topology.FitPublished(), noise: load.NewNoise(),
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
	if err := s.open(ctx, false, lab.Options{Version: b.o.Servers.Version, Topology: "rs:" + itoa(n), CacheGB: cache,
		PeerLatency: rtt, Logger: b.o.Log}); err != nil {
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

// configure hides the last voter, keeps the primary, and undoes the lab's quick elections.
func (f *forest) configure(ctx context.Context) error {
	hidden := f.voters - 1
	if hidden == f.primary {
		hidden--
	}
	err := lab.Reconfigure(ctx, f.side.direct.Client, func(c *lab.SetConfig) error {
		c.Members[hidden]["hidden"], c.Members[hidden]["priority"] = true, 0
		c.Members[f.primary]["priority"] = 10
		c.Settings["electionTimeoutMillis"], c.Settings["heartbeatIntervalMillis"] = 30_000, 2000
		return nil
	})
	return mongo.Wrap(err, "configure the set")
}

// bind gives the primary processors of its own, as far as there are enough, and limits it to its share of them.
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
		if f.unlimit, err = lab.LimitProcess(f.side.lab.Members()[f.primary].Pid(), f.params.Cores); errors.Is(err,
			lab.ErrNoQuota) {
			err = mongo.WithHint(err, "without quotas use --primary-share 1")
		}
	}
	return err
}

// lagSamples are how far members were behind, by host.
type lagSamples struct {
	byHost map[string][]float64
	worst  []float64 // of each look
	stop   func() error
}

func (f *forest) watchLag(ctx context.Context) *lagSamples {
	l := &lagSamples{byHost: map[string][]float64{}}
	l.stop = beside(ctx, func(ctx context.Context) error {
		for tick(ctx, lagEvery) {
			set, err := f.watcher.Observe(ctx)
			if err != nil {
				return fmt.Errorf("watch the members: %w", err)
			}
			l.add(set)
		}
		return nil
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

// lastLook ends watching and looks once more.
func (f *forest) lastLook(l *lagSamples) (*topology.Set, error) {
	if err := l.stop(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	set, err := f.watcher.Observe(ctx)
	return set, mongo.Wrap(err, "look at the members")
}

// lag notes how far the members were behind, and the tree under their short names.
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

const (
	// treeWithin bounds how long a set may take to get into a tree, and to catch up.
	treeWithin = 2 * time.Minute
	lagEvery   = 500 * time.Millisecond
	// warmClients write while members move: they do not keep a source that has nothing new.
	warmClients = 4
)

func (f *forest) prepare(ctx context.Context, arrange func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, treeWithin, fmt.Errorf("%s are over", treeWithin))
	defer cancel()
	if err := f.side.clear(ctx); err != nil {
		return err
	}
	if err := f.caughtUp(ctx); err != nil {
		return err
	}
	if err := f.whileWriting(ctx, arrange); err != nil {
		return err
	}
	if err := f.caughtUp(ctx); err != nil {
		return err
	}
	return f.samePrimary(ctx)
}

// whileWriting does something while a few clients write, and warms the servers.
func (f *forest) whileWriting(ctx context.Context, do func(context.Context) error) error {
	writing, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err := f.load(writing, "warm", "1", warmClients, treeWithin)
		ended <- err
	}()
	least := time.After(min(f.duration/2, 2*time.Second))
	err := do(ctx)
	if err == nil {
		select {
		case <-least:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	stop()
	if werr := <-ended; err == nil && ctx.Err() == nil && writing.Err() == nil {
		err = werr
	}
	return err
}

// load inserts records of YCSB into a table until the time is over.
func (f *forest) load(ctx context.Context, table, concern string, clients int, d time.Duration) (*load.Report, error) {
	uri := strings.Replace(f.side.lab.DirectURI(f.primary), "/?", "/"+dataDB+"?", 1) + "&w=" + concern
	return load.Execute(ctx, load.Options{Phase: load.Load, Noise: f.noise, Properties: load.Properties{
		"mongodb.url": uri, "table": table, "recordcount": "1000000000",
		"maxexecutiontime": itoa(int(d.Seconds())), "threadcount": itoa(clients),
	}})
}

// until looks at the set until it is as it should be.
func (f *forest) until(ctx context.Context, what string, ok func(*topology.Set) bool) error {
	for {
		set, err := f.observer.Observe(ctx)
		if err == nil && set.Primary() != nil && ok(set) {
			return nil
		}
		if !tick(ctx, 100*time.Millisecond) {
			return errors.Join(fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx)), err)
		}
	}
}

func (f *forest) caughtUp(ctx context.Context) error {
	return f.until(ctx, "all members to have what the primary has", func(s *topology.Set) bool {
		return !slices.ContainsFunc(s.Members,
			func(m topology.Member) bool { return m.State != topology.StatePrimary && m.LagApplied != 0 })
	})
}

// samePrimary fails after an election: another server was measured then than the one that has its own processors.
func (f *forest) samePrimary(ctx context.Context) error {
	i, err := f.side.lab.Primary(ctx)
	if err != nil {
		return err
	}
	if i != f.primary {
		return fmt.Errorf("member %d was elected in the place of member %d; the machine is too busy to measure", i, f.primary)
	}
	return nil
}

func (f *forest) chain(ctx context.Context, on bool) (*topology.Set, error) {
	set, err := f.observer.Observe(ctx)
	if err != nil {
		return nil, err
	}
	if err := f.observer.SetChaining(ctx, set, on); err != nil {
		return nil, err
	}
	return f.observer.Observe(ctx)
}

func (f *forest) direct(ctx context.Context) error {
	if _, err := f.chain(ctx, false); err != nil {
		return err
	}
	return f.until(ctx, "all members to fetch from the primary", func(s *topology.Set) bool {
		return len(s.Tree()) == f.n-1 && !slices.ContainsFunc(s.Members,
			func(m topology.Member) bool { return m.Source != "" && m.Source != s.Primary().Host })
	})
}

// chained switches chaining on and makes the tree at a share of all that members may choose.
func (f *forest) chained(ctx context.Context, concern string, share float64) error {
	set, err := f.chain(ctx, true)
	if err != nil {
		return err
	}
	if set.Primary() == nil {
		return errors.New("there is no primary")
	}
	tree := topology.AutomaticTree(level(set), concern, share, f.params)
	was := &topology.Memory{Set: set.Name, Primary: set.Primary().Host, Tree: tree}
	return topology.NewController(f.observer, topology.ControlOptions{Log: f.log}).Restore(ctx, was)
}

func (f *forest) planned(ctx context.Context) error {
	if _, err := f.chain(ctx, true); err != nil {
		return err
	}
	_, err := topology.NewController(f.observer, topology.ControlOptions{Log: f.log}).Apply(ctx)
	return err
}

// measure takes the figures of one round, with a hold of a plan if there is one.
func (f *forest) measure(ctx context.Context, m *meter, concern string, hold bool) (err error) {
	before, err := f.observer.Observe(ctx)
	if err != nil {
		return err
	}
	if hold {
		end := f.hold(ctx)
		defer func() { err = errors.Join(err, end()) }()
	}
	lags := f.watchLag(ctx)
	cpu, began := f.memberCPU(), time.Now()
	rep, err := f.load(ctx, "usertable", concern, f.o.Clients, f.duration)
	took, used := time.Since(began).Seconds(), f.memberCPU()
	after, lerr := f.lastLook(lags)
	if err := errors.Join(err, lerr, ctx.Err()); err != nil {
		return err
	}
	if err := f.samePrimary(ctx); err != nil {
		return err
	}
	if rep.Failed > 0 {
		return fmt.Errorf("%d writes failed, the first with: %s", rep.Failed, rep.FirstError)
	}
	m.set(func(r *Round) { r.Seconds, r.Done = rep.Seconds, int(rep.Operations) })
	m.used(rep.Client.CPUSeconds)
	if s := rep.Find("INSERT"); s != nil {
		m.value(writeAverage, s.Average/1000)
		m.value(writeP99, float64(s.P99)/1000)
	}
	for i := range used {
		used[i] -= cpu[i]
	}
	m.value(primaryCPU, 100*used[f.primary]/took/f.params.Cores)
	f.each(m, after, used, float64(rep.Operations))
	f.shape(m, concern, before, after)
	f.lag(m, lags, after)
	m.value(followedRate, per(float64(rep.Operations), rep.Seconds)*max(1-m.round.Values[lagAtEnd]/rep.Seconds, 0))
	return nil
}

// memberCPU is the processor time that each member has used, in seconds.
func (f *forest) memberCPU() (seconds []float64) {
	for _, m := range f.side.lab.Members() {
		seconds = append(seconds, processCPU([]int{m.Pid()}))
	}
	return seconds
}

// each notes the processor time of members for one write, by their place.
func (f *forest) each(m *meter, set *topology.Set, used []float64, writes float64) {
	below := map[string]int{}
	most := 0
	for _, src := range set.Tree() {
		below[src]++
	}
	for _, x := range set.Members {
		if x.State == topology.StateSecondary {
			most = max(most, below[x.Host])
		}
	}
	var leaves, inner []float64
	for _, x := range set.Members {
		us := 1e6 * per(used[x.ID], writes)
		switch {
		case x.State != topology.StateSecondary:
		case below[x.Host] == 0:
			leaves = append(leaves, us)
		case below[x.Host] == most:
			inner = append(inner, us)
		}
	}
	m.value(primaryEach, 1e6*per(used[f.primary], writes))
	if len(leaves) > 0 {
		m.value(leafEach, median(leaves))
	}
	if len(inner) > 0 {
		m.value(innerEach, median(inner))
	}
}

func (f *forest) hold(ctx context.Context) (end func() error) {
	return beside(ctx, func(ctx context.Context) error {
		err := topology.NewController(f.holder, topology.ControlOptions{Log: f.log}).Hold(ctx)
		if ctx.Err() == nil {
			f.log.Warn("the hold has ended", "error", err)
		}
		return nil
	})
}

// level returns the set without measured round trips: on one machine they show load, not distance.
func level(set *topology.Set) *topology.Set {
	out := *set
	out.Members = slices.Clone(set.Members)
	for i := range out.Members {
		out.Members[i].Ping = nil
	}
	return &out
}

// shape notes the tree and what the model expects of it.
func (f *forest) shape(m *meter, concern string, before, after *topology.Set) {
	was, is, moved := before.Tree(), after.Tree(), 0
	for host, src := range is {
		if was[host] != src {
			moved++
		}
	}
	m.value(sourcesMoved, float64(moved))
	after = level(after)
	mine := topology.Predict(after, is, f.params)
	m.value(underPrimary, mine.Direct)
	m.value(treeDepth, mine.Depth)
	may := *after // what the members would choose if they were let
	may.Chaining = true
	off, on := topology.Predict(after, topology.DirectTree(after), f.params), topology.PredictAutomatic(&may, f.params)
	rate, cpu := mine.For(concern)
	offRate, _ := off.For(concern)
	onRate, _ := on.For(concern)
	m.value(modelRate, rate)
	m.value(modelOf, per(rate, max(offRate, onRate)))
	m.value(modelCPU, 100*cpu)
}
