package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
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

// usage asks all members. CPU is the server's own getrusage, which it reports
// on Linux as extra_info.
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

// siteUsage is what both clusters have used.
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

// ownCPU is the processor time of this process in seconds.
func ownCPU() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return (time.Duration(u.Utime.Nano()) + time.Duration(u.Stime.Nano())).Seconds()
}

// processCPU is the processor time that running processes have used, in
// seconds, as exact as the kernel's clock ticks (proc(5): utime and stime).
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

// memory reads the resident set of a process and its peak (VmRSS and VmHWM of
// proc(5)) in bytes. The peak that wait4 and getrusage tell is no use: it
// includes that of the parent before exec.
func memory(pid int) (now, peak int64) {
	file := "/proc/" + strconv.Itoa(pid) + "/status"
	return kilobytes(file, "VmRSS"), kilobytes(file, "VmHWM")
}

// Point is one moment of a measurement.
type Point struct {
	// Seconds since the start.
	Seconds float64 `json:"t"`
	// Rate is documents changed on the target a second, over the last 10
	// seconds or since the start.
	Rate float64 `json:"rate"`
	// Resident is the tool's memory in bytes.
	Resident int64 `json:"residentBytes"`
}

// watcher samples a measurement from beside it.
type watcher struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	pids   func() []int

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

// watch starts sampling the target and the processes.
func watch(ctx context.Context, target *side, pids func() []int) *watcher {
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{cancel: cancel, pids: pids}
	began := time.Now()
	w.wg.Go(func() { w.series(ctx, target, began) })
	w.wg.Go(func() {
		for tick(ctx, memoryEvery) {
			w.resident()
		}
	})
	return w
}

// stop ends sampling and returns what was seen.
func (w *watcher) stop() ([]Point, int64, error) {
	w.cancel()
	w.wg.Wait()
	return w.points, w.peak, w.err
}

// resident notes the memory of all processes together.
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

func (w *watcher) series(ctx context.Context, target *side, began time.Time) {
	type moment struct {
		at      time.Duration
		changed int64
	}
	var seen []moment
	for {
		u, err := target.usage(ctx)
		if err != nil {
			if ctx.Err() == nil {
				w.fail(err)
			}
			return
		}
		now := moment{time.Since(began), u.changed}
		seen = append(seen, now)
		first := seen[max(len(seen)-1-int(averageOver/seriesEvery), 0)]
		p := Point{Seconds: now.at.Seconds(), Resident: w.resident()}
		if d := (now.at - first.at).Seconds(); d > 0 {
			p.Rate = float64(now.changed-first.changed) / d
		}
		w.mu.Lock()
		w.points = append(w.points, p)
		w.mu.Unlock()
		if !tick(ctx, seriesEvery) {
			return
		}
	}
}

func (w *watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.err, err)
}

// tick waits; false means that ctx has ended.
func tick(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
