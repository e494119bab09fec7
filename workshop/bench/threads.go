package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/workshop/plot"
)

// setting is one way to run the sync that is measured: how many partitions apply
// changes, and how many bytes of changes they share.
type setting struct {
	buffer     string // as --apply-buffer takes it
	partitions int
}

// name of its contender.
func (s setting) name() string { return s.buffer + ", " + itoa(s.partitions) }

// threadSettings are those of the published table of DDT in its order: its threads
// that write (oplogWrite) and two sizes of its caches, 16 of 16 and 32 of 32, whose
// ratio is 1 to 4. What one of these holds in bytes was not published.
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
	c.Columns = []string{"time", "rate", "of ceiling", valueOperations, valueCPUPercent, valueMemory, valueCPUEach, valueWindow, "peak", "operations folded"}
	c.Versus = []Versus{{X: valueOperations, Y: valueCPUPercent}, {X: valueOperations, Y: valueMemory}}
	c.Notes = append(c.Notes,
		"a row is named by its --apply-buffer and its --partitions",
		"operations/s, CPU % (of one core), memory and CPU an operation are of millrace's process alone, as its status tells them twice a second: "+
			"the median of all averages over 10 seconds while operations are applied, or, where that takes less, their average over all of it; "+
			"where it takes less than a second, over the whole process")
}

// swept are the contenders of a backlog that is drained with several settings.
func (w *incrWork) swept(drain []string) []contender {
	var all []contender
	for _, s := range w.settings {
		x := w.syncs(w.site, w.empty, w.complete, append(slices.Clip(drain), "--partitions", itoa(s.partitions), "--apply-buffer", s.buffer)...)[0] // its variants have no place among the settings
		x.name = s.name()
		run := x.run
		x.run = func(ctx context.Context, m *meter) error { return w.sampled(ctx, m, run) }
		all = append(all, x)
	}
	return all
}

// sampled notes what a sync tells of itself while it runs.
func (w *incrWork) sampled(ctx context.Context, m *meter, run func(context.Context, *meter) error) error {
	watching, stop := context.WithCancel(ctx)
	var samples []jobSample
	var wg sync.WaitGroup
	wg.Go(func() { samples = sampleJob(watching, w.dir, m) })
	began := time.Now()
	err := run(ctx, m)
	took := time.Since(began).Seconds()
	stop()
	wg.Wait()
	if err != nil {
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

// jobSample is what a sync says of itself at one moment.
type jobSample struct {
	at         time.Time
	operations int64
	cpu        float64 // seconds
	resident   int64   // bytes
}

// sampleJob asks a sync, from its start until ctx ends, for its status over its
// control API. What it does not answer, before it listens or when it ends, is left
// out.
func sampleJob(ctx context.Context, stateDir string, m *meter) (all []jobSample) {
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	for tick(ctx, seriesEvery) {
		for _, pid := range m.processes() {
			if s, err := askJob(ctx, client, filepath.Join(stateDir, "millrace", "run", jobName+"-"+strconv.Itoa(pid)+".json")); err == nil {
				all = append(all, s)
			}
		}
	}
	return all
}

// askJob asks the sync of a record for its status.
func askJob(ctx context.Context, client *http.Client, record string) (s jobSample, err error) {
	var rec struct{ Address, Token string }
	raw, err := os.ReadFile(record)
	if err == nil {
		err = json.Unmarshal(raw, &rec)
	}
	if err != nil {
		return s, fmt.Errorf("find the control API: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rec.Address+"/api/v1/status", nil)
	if err != nil {
		return s, fmt.Errorf("ask for the status: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+rec.Token)
	res, err := client.Do(req)
	if err != nil {
		return s, fmt.Errorf("ask for the status: %w", err)
	}
	defer res.Body.Close()
	var status struct {
		Follow  struct{ Operations int64 }
		Process struct {
			CPUSeconds    float64
			ResidentBytes int64
		}
	}
	if res.StatusCode != http.StatusOK {
		return s, fmt.Errorf("ask for the status: %s", res.Status)
	}
	if err := json.NewDecoder(res.Body).Decode(&status); err != nil {
		return s, fmt.Errorf("read the status: %w", err)
	}
	return jobSample{time.Now(), status.Follow.Operations, status.Process.CPUSeconds, status.Process.ResidentBytes}, nil
}

// average is what a sync did and used over some time.
type average struct {
	operations float64 // a second
	cores      float64
	resident   float64 // bytes
	seconds    float64
}

// averages are the medians of all averages over ten seconds in which operations were
// applied, or the average over all that time where it is shorter. ok is false when
// it is less than a second.
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

// working leaves of samples those from the last one before operations were applied to
// the first one after.
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

// note puts the figures into the round.
func (a average) note(m *meter) {
	m.value(valueOperations, a.operations)
	m.value(valueCPUPercent, a.cores*100)
	m.value(valueMemory, a.resident/1e6)
	m.value(valueCPUEach, per(a.cores*1e6, a.operations))
	m.value(valueWindow, a.seconds)
}

// Versus is a picture of one value over another, a point for each contender.
type Versus struct {
	X string `json:"x"`
	Y string `json:"y"`
}

// versus draws the contenders by two of their values. Names that begin alike, up to a
// comma, have one colour, and their labels are what follows it.
func (c *Case) versus(s *plot.Sheet, v Versus) {
	var all []plot.Cloud
	for i := range c.Contenders {
		x := &c.Contenders[i]
		if len(x.Rounds) == 0 || x.Kind != KindMillrace {
			continue
		}
		name, label, _ := strings.Cut(x.Name, ", ")
		if n := len(all); n == 0 || all[n-1].Name != name {
			all = append(all, plot.Cloud{Name: name})
		}
		last := &all[len(all)-1]
		last.Labels = append(last.Labels, label)
		last.X, last.Y = append(last.X, x.Values[v.X].Median), append(last.Y, x.Values[v.Y].Median)
	}
	s.Scatter(v.Y+" over "+v.X, all, v.X, v.Y)
}
