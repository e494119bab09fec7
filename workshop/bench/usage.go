package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	load "github.com/millrace/millrace/workshop/ycsb"
)

// serverUsage is what the members of a cluster have used since they started.
type serverUsage struct {
	cpu     float64 // seconds
	in, out int64   // bytes on the network
	changed int64   // documents inserted, updated or deleted
}

func (u serverUsage) minus(v serverUsage) serverUsage {
	return serverUsage{u.cpu - v.cpu, u.in - v.in, u.out - v.out, u.changed - v.changed}
}

// usage asks all members. CPU is the server's own getrusage, which it reports on Linux as extra_info.
func (s *side) usage(ctx context.Context) (total serverUsage, err error) {
	for _, n := range s.nodes {
		raw, err := n.Command(ctx, "admin", bson.D{{Key: "serverStatus", Value: 1}})
		if err != nil {
			return total, fmt.Errorf("serverStatus of %s: %w", n.Address(), err)
		}
		num := func(path ...string) int64 { v, _ := raw.Lookup(path...).AsInt64OK(); return v }
		total.cpu += float64(num("extra_info", "user_time_us")+num("extra_info", "system_time_us")) / 1e6
		total.in += num("network", "bytesIn")
		total.out += num("network", "bytesOut")
		for _, f := range []string{"inserted", "updated", "deleted"} {
			total.changed += num("metrics", "document", f)
		}
	}
	return total, nil
}

type siteUsage struct{ source, target serverUsage }

// whileDoing measures what the servers use while something is done, and its time.
func (st *site) whileDoing(ctx context.Context, do func() error) (u siteUsage, seconds float64, err error) {
	before, err := st.usage(ctx)
	if err != nil {
		return u, 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return u, 0, err
	}
	seconds = time.Since(began).Seconds()
	after, err := st.usage(ctx)
	return siteUsage{after.source.minus(before.source), after.target.minus(before.target)}, seconds, err
}

func (st *site) usage(ctx context.Context) (u siteUsage, err error) {
	if u.source, err = st.source.usage(ctx); err == nil {
		u.target, err = st.target.usage(ctx)
	}
	return u, err
}

func ownCPU() float64 { return load.CPUTime().Seconds() }

// processCPU is the seconds of processor time of running processes, in clock ticks (proc(5): utime and stime).
func processCPU(pids []int) (seconds float64) {
	const ticks = 100 // USER_HZ of Linux
	for _, pid := range pids {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		if len(fields) < 13 {
			continue
		}
		for _, f := range fields[11:13] {
			n, err := strconv.ParseInt(f, 10, 64)
			if err == nil {
				seconds += float64(n) / ticks
			}
		}
	}
	return seconds
}

// memory returns the resident set of a process and its peak in bytes (VmRSS and VmHWM of proc(5)). The peak of
// wait4 and getrusage includes that of the parent before exec.
func memory(pid int) (now, peak int64) {
	file := "/proc/" + strconv.Itoa(pid) + "/status"
	return kilobytes(file, "VmRSS"), kilobytes(file, "VmHWM")
}

// Point is one moment of a measurement. All but Rate and Resident are since the start.
type Point struct {
	Seconds float64 `json:"t"`
	// Rate is documents changed on the target a second, over the last 10 seconds or since the start.
	Rate     float64 `json:"rate"`
	Resident int64   `json:"residentBytes"` // Resident is the tool's memory in bytes.
	Changed  int64   `json:"changed"`       // Changed is documents inserted, updated or deleted on the target.
	// CPU is processor time of the tool's processes in seconds, 0 where the bench does the work itself.
	CPU float64 `json:"toolCPUSeconds"`
	// SourceSent and TargetReceived are bytes as the servers count them.
	SourceSent     int64 `json:"sourceSentBytes"`
	TargetReceived int64 `json:"targetReceivedBytes"`
}

// watcher samples a measurement from beside it.
type watcher struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	pids   func() []int
	cpu    map[int]float64 // what each process has used, also after its end; series alone has it.

	mu     sync.Mutex
	points []Point
	peak   int64
	err    error
}

const (
	seriesEvery = 500 * time.Millisecond
	memoryEvery = 25 * time.Millisecond
	averageOver = 10 * time.Second
)

func watch(ctx context.Context, st *site, pids func() []int) *watcher {
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{cancel: cancel, pids: pids, cpu: map[int]float64{}}
	began := time.Now()
	w.wg.Go(func() { w.series(ctx, st, began) })
	w.wg.Go(func() {
		for tick(ctx, memoryEvery) {
			w.resident()
		}
	})
	return w
}

func (w *watcher) stop() ([]Point, int64, error) {
	w.cancel()
	w.wg.Wait()
	return w.points, w.peak, w.err
}

func (w *watcher) resident() int64 {
	var now, peak int64
	for _, pid := range w.pids() {
		n, p := memory(pid)
		now, peak = now+n, peak+p
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.peak = max(w.peak, peak)
	return now
}

// used is the processor time of all processes together, with the last figures of ended ones.
func (w *watcher) used() (seconds float64) {
	for _, pid := range w.pids() {
		w.cpu[pid] = max(w.cpu[pid], processCPU([]int{pid}))
	}
	for _, s := range w.cpu {
		seconds += s
	}
	return seconds
}

func (w *watcher) series(ctx context.Context, st *site, began time.Time) {
	var first siteUsage
	for n := 0; ; n++ {
		u, err := st.usage(ctx)
		if err != nil {
			if ctx.Err() == nil {
				w.err = err
			}
			return
		}
		if n == 0 {
			first = u
		}
		source, target := u.source.minus(first.source), u.target.minus(first.target)
		w.add(Point{
			Seconds: time.Since(began).Seconds(), Resident: w.resident(), CPU: w.used(),
			Changed: target.changed, SourceSent: source.out, TargetReceived: target.in,
		})
		if !tick(ctx, seriesEvery) {
			return
		}
	}
}

func (w *watcher) add(p Point) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.points = append(w.points, p)
	last := len(w.points) - 1
	w.points[last].Rate = slopeOf(w.points, last, averageOver, func(p Point) float64 { return float64(p.Changed) })
}

// slopeOf is how much a figure grows a second, up to the point of a number, over about so long or since the start.
func slopeOf(points []Point, last int, over time.Duration, of func(Point) float64) float64 {
	first := max(last-int(over/seriesEvery), 0)
	return per(of(points[last])-of(points[first]), points[last].Seconds-points[first].Seconds)
}

// latencies notes those of all operations of a round, in milliseconds.
func (m *meter) latencies(ms []float64) {
	slices.Sort(ms)
	m.value(p50, percentile(ms, 0.5))
	m.value(p99, percentile(ms, 0.99))
	m.value(pMax, percentile(ms, 1))
	m.set(func(r *Round) { r.Done = len(ms) })
}

// beside runs do until stop is called, which waits for it and returns why it ended before.
func beside(ctx context.Context, do func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		err := do(ctx)
		if ctx.Err() != nil {
			err = nil
		}
		ended <- err
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

// await looks again after each pause until done or the look fails. A look that fails with ctx counts as its end.
func await(ctx context.Context, pause time.Duration, look func() (bool, error)) error {
	for {
		if ok, err := look(); ok || err != nil && ctx.Err() == nil {
			return err
		}
		if !tick(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// tick waits; false means that ctx has ended.
func tick(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
