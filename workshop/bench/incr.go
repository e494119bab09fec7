package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// foldWindow is how much of the oplog the ceiling folds together: what a tool of bounded memory can keep.
const foldWindow = 64 << 20

// draining is the experiment of a backlog that has to be drained.
type draining struct {
	shape    func() *shape // nil is ycsb
	load     workload      // without a shape; 0 collections are 1
	variants []indexed     // a case each; none is one without indexes
	settings []setting     // a contender each in place of millrace's own; none leaves them to it
	link     link          // to the target; over one that is far the ceiling reads nothing
	extra    []ruled
}

type indexed struct {
	variant string
	indexes []index
}

func (d draining) run(ctx context.Context, b *bench, s scenario) error {
	if len(d.variants) == 0 {
		d.variants = []indexed{{}}
	}
	d.load.shape, d.load.collections, d.load.operations = shapeOf(d.shape), max(d.load.collections, 1),
		b.o.Scale.of(d.load.operations)
	for _, v := range d.variants {
		if err := d.measure(ctx, b, s, v); err != nil {
			return err
		}
	}
	return nil
}

func (d draining) measure(ctx context.Context, b *bench, s scenario, v indexed) error {
	bytes := d.load.operations * d.load.shape.size
	n := needs{
		sourceCacheGB: b.cacheGB(2 * bytes), targetCacheGB: b.cacheGB(2 * bytes),
		oplogMB: oplogMB(d.load.operations, d.load.shape.size+200), member: b.hasPeer(peerSecondary),
		targetProxy: d.link.far(),
	}
	c := Case{
		Scenario: s.name, Variant: v.variant, Work: "apply a backlog of " + d.load.describe() + "; " + d.load.shape.name,
		Ceiling: s.ceiling, Unit: "operations", Count: d.load.operations,
	}
	if d.load.collections > 1 {
		c.Work += "; " + itoa(d.load.collections) + " collections"
	}
	if d.load.kept > 0 {
		c.Work += ", of which " + itoa(d.load.kept) + " is kept"
	}
	if len(d.settings) > 0 {
		describeSettings(&c)
	}
	c.Notes = append(c.Notes, d.link.notes()...)
	return b.onServers(ctx, s, n, func(st *site) error {
		w := &incrWork{bench: b, site: st, load: d.load, indexes: v.indexes, settings: d.settings, link: d.link,
			extra: d.extra}
		if err := w.begin(ctx, &c); err != nil {
			return err
		}
		if err := w.calibrate(ctx, &c); err != nil {
			return err
		}
		return b.compete(ctx, st, c, w.contenders())
	})
}

type incrWork struct {
	*bench
	*site
	load     workload
	indexes  []index
	settings []setting
	link     link
	extra    []ruled
	span     span
	read     oplogReading
	write    settings
	final    []change // everything folded together
	behind   string   // behind keeps the files of a secondary from before the backlog.
}

func (w *incrWork) begin(ctx context.Context, c *Case) (err error) {
	if err := w.source.remake(ctx, w.load.collections, w.indexes); err != nil {
		return err
	}
	if w.hasPeer(peerSecondary) {
		w.behind = filepath.Join(w.dir, "behind-"+c.Variant)
		if err := os.CopyFS(w.behind, os.DirFS(w.source.spare().DBPath)); err != nil {
			return fmt.Errorf("keep the secondary's files: %w", err)
		}
	}
	w.bench.say("%s: writing %s", c.Name(), w.load.describe())
	if w.span, err = w.load.write(ctx, w.source); err != nil {
		return err
	}
	w.foldAll()
	return w.source.settle(ctx)
}

// foldAll notes what is left of the backlog in the end.
func (w *incrWork) foldAll() {
	for changes := range w.load.fold(w.load.mine(), 0) {
		w.final = changes
	}
}

func (w *incrWork) calibrate(ctx context.Context, c *Case) (err error) {
	w.bench.say("%s: finding the best ways to read and to apply", c.Name())
	var note string
	w.span.of = w.load.keeping()
	part := w.span.head(float64(mostRead) / float64(w.load.operations))
	w.read, note, err = choose(ctx, w.load.operations, []oplogReading{{1, 0}, {1, 5000}, {2, 0}, {2, 5000}, {4, 0}},
		func(ctx context.Context, r oplogReading) (time.Duration, error) {
			began := time.Now()
			_, err := readOplog(ctx, w.source, part, r)
			return time.Since(began), err
		})
	if err != nil {
		return err
	}
	c.Notes = append(c.Notes, fmt.Sprintf("reading the oplog of about %d operations: %s", min(w.load.operations, mostRead),
		note))
	connections := []int{2, 4, 8, 16}
	if w.link.far() {
		w.target.moveAway(w.link)
		connections = farConnections()
	}
	return w.bestApply(ctx, c, len(w.target.nodes), grid(connections, []int{128 << 10, 512 << 10, 2 << 20}))
}

// bestApply finds the best settings to apply to so many members.
func (w *incrWork) bestApply(ctx context.Context, c *Case, members int, all []settings) (err error) {
	n := trialSize(w.load.operations, members)
	var note string
	w.write, note, err = choose(ctx, n, all, func(ctx context.Context, s settings) (time.Duration, error) {
		if err := w.empty(ctx); err != nil {
			return 0, err
		}
		p := newPlan(w.load.fold(limit(w.load.mine(), n), foldWindow), s.connections)
		return w.target.timed(ctx, func() error { return w.load.apply(ctx, w.target, p, s) })
	})
	c.Notes = append(c.Notes, fmt.Sprintf("applying the first %d operations: %s", n, note))
	return err
}

// readOplog reads the backlog and fails unless it is all there.
func (w *incrWork) readOplog(ctx context.Context, s span, r oplogReading) error {
	n, err := readOplog(ctx, w.source, s, r)
	want := int64(w.load.operations)
	if s.of != nil {
		want = 0
		for range w.load.mine() {
			want++
		}
	}
	if err == nil && n < want {
		err = fmt.Errorf("the oplog has %d entries for %d operations", n, want)
	}
	return err
}

// empty makes the target as the source was before the backlog.
func (w *incrWork) empty(ctx context.Context) error {
	return w.target.remake(ctx, w.load.collections, w.indexes)
}

func (w *incrWork) contenders() []contender {
	folded := newPlan(w.load.fold(w.load.mine(), foldWindow), w.write.connections)
	if w.load.kept > 0 {
		return w.sharers(folded)
	}
	how := "apply, folded within " + kib(foldWindow) + " of oplog"
	if !w.link.far() {
		how = "read the oplog: " + w.read.String() + "; " + how
	}
	all := []contender{w.ceiling("ceiling", KindCeiling, folded, how)}
	drain := w.draining()
	if len(w.settings) > 0 {
		return append(append(all, w.swept(drain)...), w.peers(w.peer)...)
	}
	all = append(all,
		w.ceiling("all folded", KindReference, newPlan(w.load.fold(w.load.ops(), 0), w.write.connections),
			"the same, everything folded together as with boundless memory"),
		w.ceiling("unfolded", KindReference, w.load.unfolded(w.write.connections),
			"the same, each operation by itself, in order"),
	)
	if !w.link.far() {
		all = append(all, w.streamed(folded))
	}
	all = append(all, w.syncs(w.site, w.empty, w.complete, drain...)...)
	all = append(all, w.ruled(w.site, w.extra, w.empty, w.completeAs, drain...)...)
	return append(all, w.peers(w.peer)...)
}

// streamed reads a bare change stream in place of the oplog, then applies a plan.
func (w *incrWork) streamed(p plan) contender {
	c := w.ceiling("bare change stream", KindReference, p, "read by one change stream of the driver; apply as the ceiling")
	apply := w.applying(p)
	c.run = func(ctx context.Context, m *meter) error {
		err := m.part("read", func() error {
			n, err := readStream(ctx, w.source, w.span)
			if err == nil && n < int64(w.load.operations) {
				err = fmt.Errorf("the change stream has %d events for %d operations", n, w.load.operations)
			}
			return err
		})
		if err != nil {
			return err
		}
		return apply(ctx, m)
	}
	return c
}

// draining are the arguments of a sync of the backlog.
func (w *incrWork) draining() []string {
	return []string{"--mode", "incremental", "--start-at", w.span.from.String(), "--until", "caught-up"}
}

// sharers drain a backlog of which most is not kept.
func (w *incrWork) sharers(p plan) []contender {
	all := w.ceiling("all entries", KindReference, p, "read all of the oplog: "+w.read.String()+"; apply")
	entire := w.span
	entire.of = nil
	all.run = w.reading(entire, p)
	drain := append(w.draining(), "--include", strings.Join(w.span.of, ","))
	return append([]contender{
		w.ceiling("ceiling", KindCeiling, p, "read what is kept of the oplog: "+w.read.String()+"; apply"), all,
	}, w.syncs(w.site, w.empty, w.complete, drain...)...)
}

// ceiling reads the oplog and applies a plan, one after the other.
func (w *incrWork) ceiling(name string, kind Kind, p plan, how string) contender {
	return contender{
		name: name, kind: kind, how: fmt.Sprintf("%s (%d statements left): %s", how, p.statements(), w.write),
		prepare: w.empty,
		run:     w.reading(w.span, p),
		check:   w.complete,
	}
}

// reading reads entries and applies a plan.
func (w *incrWork) reading(s span, p plan) func(context.Context, *meter) error {
	return func(ctx context.Context, m *meter) error {
		if !w.link.far() {
			if err := m.part("read", func() error { return w.readOplog(ctx, s, w.read) }); err != nil {
				return err
			}
		}
		return w.applying(p)(ctx, m)
	}
}

func (w *incrWork) applying(p plan) func(context.Context, *meter) error {
	return func(ctx context.Context, m *meter) error {
		if err := m.part("apply", func() error { return w.load.apply(ctx, w.target, p, w.write) }); err != nil {
			return err
		}
		return m.part(partMajority, func() error { return w.target.majority(ctx) })
	}
}

// peer is a peer's way to drain a backlog; false when it has none.
func (w *incrWork) peer(p Peer) (contender, bool) {
	if p.Name == peerSecondary {
		return w.catchUp(), true
	}
	t, drains := p.draining(w.span.from.Time().Add(time.Second))
	if !drains {
		return contender{}, false
	}
	f := w.follow(w.site, p, t)
	return contender{
		name: p.Name, kind: KindPeer, how: f.how + "; until the target has everything",
		prepare: w.empty, check: w.complete,
		run: func(ctx context.Context, m *meter) error { return w.drainBy(ctx, f, m) },
	}, true
}

// drainBy stops the clock when a later marker, which may come first, and all documents are on the target.
func (w *incrWork) drainBy(ctx context.Context, f follower, m *meter) error {
	began := time.Now()
	return running(ctx, f, m, func(ctx context.Context) error {
		mark := bson.NewObjectID()
		if err := setMarker(ctx, w.source, mark); err != nil {
			return err
		}
		err := awaitAll(ctx, func(ctx context.Context) (bool, int64, error) {
			n, err := w.target.count(ctx, w.load.collections)
			if err != nil || n != int64(len(w.final)) {
				return false, n, err
			}
			marked, err := hasMarker(ctx, w.target, mark)
			return marked && w.complete(ctx) == nil, n, err
		})
		if err != nil {
			return err
		}
		return w.endsOnMajority(ctx, m, began)
	})
}

// setting is the partitions and the bytes of changes of a sync that is measured.
type setting struct {
	buffer     string // as --apply-buffer takes it
	partitions int
}

func (s setting) name() string { return s.buffer + ", " + itoa(s.partitions) }

func (s setting) args() []string {
	return []string{"--partitions", itoa(s.partitions), "--apply-buffer", s.buffer}
}

// threadSettings stand for DDT's oplogWrite threads and two cache sizes of ratio 1 to 4; bytes were not published.
func threadSettings() []setting {
	var all []setting
	for _, buffer := range []string{"16MiB", "64MiB"} {
		for _, partitions := range []int{6, 9, 12, 15} {
			all = append(all, setting{buffer, partitions})
		}
	}
	return all
}

// The figures of a setting, and what its pictures show over what.
const (
	valueOperations = "operations/s, 10 s average"
	valueCPUPercent = "CPU %"
	valueMemory     = "memory MB"
	valueCPUEach    = "CPU us an operation"
	valueWindow     = "averaged over s"
)

// describeSettings tells in a case that is swept over settings what is shown, and how.
func describeSettings(c *Case) {
	c.Columns = []string{"time", "rate", "of ceiling", valueOperations, valueCPUPercent, valueMemory, valueCPUEach,
		valueWindow, "peak", "operations folded"}
	c.Notes = append(c.Notes,
		"a row is named by its --apply-buffer and its --partitions",
		"operations/s, CPU % (of one core), memory and CPU an operation are of millrace's process alone, as its status "+
			"tells them twice a second: "+
			"the median of all averages over 10 seconds while operations are applied, or, where that takes less, their "+
			"average over all of it; "+"where it takes less than a second, over the whole process")
}

// swept are the contenders of a backlog that is drained with several settings.
func (w *incrWork) swept(drain []string) []contender {
	var all []contender
	for _, s := range w.settings {
		// its variants have no place among the settings
		x := w.syncs(w.site, w.empty, w.complete, append(slices.Clip(drain), s.args()...)...)[0]
		x.name = s.name()
		run := x.run
		x.run = func(ctx context.Context, m *meter) error { return w.sampled(ctx, m, run) }
		all = append(all, x)
	}
	return all
}

func (w *incrWork) sampled(ctx context.Context, m *meter, run func(context.Context, *meter) error) error {
	var samples []jobSample
	stop := beside(ctx, func(ctx context.Context) error {
		samples = sampleJob(ctx, w.dir, m)
		return nil
	})
	began := time.Now()
	err := run(ctx, m)
	took := time.Since(began).Seconds()
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	a, ok := averages(samples)
	if !ok {
		a = average{operations: per(float64(w.load.operations), took), seconds: took}
		for _, s := range samples {
			a.resident += float64(s.resident) / float64(len(samples))
		}
		m.set(func(r *Round) { a.cores = per(r.ToolCPU, took) })
	}
	a.note(m)
	return nil
}

type jobSample struct {
	at         time.Time
	operations int64
	cpu        float64 // seconds
	resident   int64   // bytes
}

// sampleJob asks a sync for its status until ctx ends. It leaves out what is not answered.
func sampleJob(ctx context.Context, stateDir string, m *meter) (all []jobSample) {
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	for tick(ctx, seriesEvery) {
		for _, pid := range m.processes() {
			if s, err := askJob(ctx, client, filepath.Join(stateDir, "millrace", "run", jobName+"-"+strconv.Itoa(pid)+
				".json")); err == nil {
				all = append(all, s)
			}
		}
	}
	return all
}

func askJob(ctx context.Context, client *http.Client, record string) (s jobSample, err error) {
	var rec struct{ Address, Token string }
	if err := readJSON(record, "where the control API is", &rec); err != nil {
		return s, err
	}
	var j struct {
		Report struct {
			Status struct {
				Follow  struct{ Operations int64 }
				Process struct {
					CPUSeconds    float64
					ResidentBytes int64
				}
			}
		}
	}
	err = api{client, rec.Address, rec.Token}.ask(ctx, http.MethodGet, pathJobs+"/"+jobName, nil, &j)
	status := &j.Report.Status
	return jobSample{time.Now(), status.Follow.Operations, status.Process.CPUSeconds, status.Process.ResidentBytes}, err
}

type average struct {
	operations float64 // a second
	cores      float64
	resident   float64 // bytes
	seconds    float64
}

// averages returns medians over ten-second windows of work, or the average of less; ok is false below a second.
func averages(all []jobSample) (a average, ok bool) {
	all = working(all)
	var rates, cores, resident []float64
	for i := range all {
		for j := i + 1; j < len(all); j++ {
			if all[j].at.Sub(all[i].at) >= averageOver {
				w := over(all[i : j+1])
				rates, cores, resident = append(rates, w.operations), append(cores, w.cores), append(resident, w.resident)
				break
			}
		}
	}
	if len(rates) > 0 {
		return average{median(rates), median(cores), median(resident), averageOver.Seconds()}, true
	}
	if len(all) < 2 || all[len(all)-1].at.Sub(all[0].at) < time.Second {
		return a, false
	}
	return over(all), true
}

// working leaves of samples those from the last one before operations were applied to the first one after.
func working(all []jobSample) []jobSample {
	for len(all) > 1 && all[1].operations == 0 {
		all = all[1:]
	}
	for len(all) > 1 && all[len(all)-2].operations == all[len(all)-1].operations {
		all = all[:len(all)-1]
	}
	return all
}

// over is the average from the first sample to the last; there are two at least.
func over(all []jobSample) average {
	first, last := all[0], all[len(all)-1]
	a := average{seconds: last.at.Sub(first.at).Seconds()}
	a.operations = per(float64(last.operations-first.operations), a.seconds)
	a.cores = per(last.cpu-first.cpu, a.seconds)
	for _, s := range all {
		a.resident += float64(s.resident) / float64(len(all))
	}
	return a
}

func (a average) note(m *meter) {
	m.value(valueOperations, a.operations)
	m.value(valueCPUPercent, a.cores*100)
	m.value(valueMemory, a.resident/1e6)
	m.value(valueCPUEach, per(a.cores*1e6, a.operations))
	m.value(valueWindow, a.seconds)
}
