package ycsb

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// Report is what a run has measured. Latencies are in microseconds.
type Report struct {
	Phase      Phase  `json:"phase"`
	Address    string `json:"address"` // without credentials
	Database   string `json:"database"`
	Collection string `json:"collection"`
	// WriteConcern and ReadPreference as they were asked for; "" leaves the write concern to the server.
	WriteConcern   string    `json:"writeConcern,omitempty"`
	ReadPreference string    `json:"readPreference"`
	Threads        int       `json:"threads"`
	Target         float64   `json:"targetOperationsPerSecond,omitempty"`
	Distribution   string    `json:"requestDistribution"`
	Seed           uint64    `json:"seed"`
	Started        time.Time `json:"started"`
	Seconds        float64   `json:"seconds"`
	Operations     int64     `json:"operations"`
	Throughput     float64   `json:"operationsPerSecond"`
	Failed         int64     `json:"failed"`
	FirstError     string    `json:"firstError,omitempty"`
	Interrupted    bool      `json:"interrupted,omitempty"`
	Resume         *Resume   `json:"resume,omitempty"`
	Series         []Series  `json:"series"`
	Course         []Point   `json:"course"`
	Client         Client    `json:"client"`

	measure measureConfig
}

// Series are the latencies of one kind of operation.
type Series struct {
	Name        string           `json:"name"` // as in the lines, such as READ or Intended-READ
	Operations  int64            `json:"operations"`
	Average     float64          `json:"averageMicroseconds"`
	Deviation   float64          `json:"standardDeviationMicroseconds"`
	Min         int64            `json:"minMicroseconds"`
	Max         int64            `json:"maxMicroseconds"`
	P50         int64            `json:"p50Microseconds"`
	P95         int64            `json:"p95Microseconds"`
	P99         int64            `json:"p99Microseconds"`
	P999        int64            `json:"p999Microseconds"`
	Returns     map[string]int64 `json:"returns,omitempty"`
	percentiles []percentile
	millis      []int64
}

// percentile is one that hdrhistogram.percentiles asks for.
type percentile struct {
	p     float64
	value int64
}

// Client is what the load generator itself used.
type Client struct {
	CPUSeconds float64 `json:"cpuSeconds"`                  // user and system, 0 where it is not known
	CPUEach    float64 `json:"cpuMicrosecondsPerOperation"` // CPUEach is in microseconds an operation.
	GCs        int64   `json:"garbageCollections"`
	GCPause    float64 `json:"garbageCollectionPauseMillis"`
	AllocBytes int64   `json:"allocatedBytes"`
}

// Resume says what is left of a load that stopped early.
type Resume struct {
	InsertStart int64 `json:"insertstart"`
	InsertCount int64 `json:"insertcount"`
}

// Hint says how to go on. Later records may exist, so the rest is upserted.
func (r *Resume) Hint() string {
	return fmt.Sprintf("go on with the same load and -p insertstart=%d -p insertcount=%d -p mongodb.upsert=true",
		r.InsertStart, r.InsertCount)
}

// Find is the series with a name, nil when nothing of it occurred.
func (r *Report) Find(name string) *Series {
	if i := slices.IndexFunc(r.Series, func(s Series) bool { return s.Name == name }); i >= 0 {
		return &r.Series[i]
	}
	return nil
}

func (r *run) report(took time.Duration, used usageOf) *Report {
	rep := &Report{Phase: r.phase, Address: mongo.Redact(r.url), Database: r.database, Collection: r.table,
		Threads: r.config.threads, Target: r.target,
		Distribution: r.requests, Seed: r.options.Seed, Started: r.began, Seconds: took.Seconds(),
		Operations: operationsOf(&r.total.returns),
		Course:     r.course.points, FirstError: r.errors.first, measure: r.measure}
	rep.Throughput = float64(rep.Operations) / max(took.Seconds(), 1e-9)
	rep.WriteConcern, rep.ReadPreference = r.asked()
	rep.Client = Client{CPUSeconds: used.cpu.Seconds(), GCs: used.gcs, GCPause: float64(used.pause.Microseconds()) / 1000,
		AllocBytes: used.allocated}
	rep.Client.CPUEach = used.cpu.Seconds() * 1e6 / float64(max(rep.Operations, 1))
	var reported [kinds]bool
	for s, t := range r.total.all {
		one := r.series(s, t)
		if s.variant == fromStart || s.variant == fromIntended && !r.measure.op {
			one.Returns = returnsOf(r.total.returns[s.kind])
			reported[s.kind] = true
		}
		rep.Series = append(rep.Series, one)
	}
	for k := range kinds { // of which nothing succeeded
		if returns := returnsOf(r.total.returns[k]); len(returns) > 0 && !reported[k] {
			rep.Series = append(rep.Series, Series{Name: k.String(), Returns: returns})
		}
		if k != opCleanup && k != opModify {
			for s, n := range r.total.returns[k] {
				if !status(s).ok() {
					rep.Failed += n
				}
			}
		}
	}
	return rep
}

// asked returns the write concern, "" for the server's, and the read preference that the properties ask for.
func (c *config) asked() (concern, preference string) {
	preference = "primary"
	if c.concern != nil && c.concern.W != nil {
		concern = fmt.Sprint(c.concern.W)
	}
	if c.read != nil {
		preference = c.read.Mode().String()
	}
	return concern, preference
}

func (r *run) series(s series, t *latencyStats) Series {
	one := Series{Name: s.String(), Operations: t.count, Average: t.mean(), Deviation: math.Sqrt(t.variance()),
		Min: t.least, Max: t.most,
		P50: t.percentile(50), P95: t.percentile(95), P99: t.percentile(99), P999: t.percentile(99.9), millis: t.millis}
	for _, p := range r.measure.percentiles {
		one.percentiles = append(one.percentiles, percentile{p, t.percentile(p)})
	}
	return one
}

func returnsOf(counts [statuses]int64) map[string]int64 {
	out := map[string]int64{}
	for s, n := range counts {
		if n > 0 {
			out[status(s).String()] = n
		}
	}
	return out
}

type usageOf struct {
	cpu, pause     time.Duration
	gcs, allocated int64
}

func usage() usageOf {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usageOf{cpu: CPUTime(), pause: time.Duration(m.PauseTotalNs), gcs: int64(m.NumGC),
		allocated: int64(m.TotalAlloc)}
}

func (u usageOf) since(before usageOf) usageOf {
	return usageOf{u.cpu - before.cpu, u.pause - before.pause, u.gcs - before.gcs, u.allocated - before.allocated}
}

// ordinal is 95 as 95th, 99.9 as it is.
func ordinal(p float64) string {
	text, n := strconv.FormatFloat(p, 'f', -1, 64), int64(p)
	suffix := map[int64]string{1: "st", 2: "nd", 3: "rd"}[n%10]
	switch {
	case float64(n) != p:
		return text
	case suffix == "" || n%100/10 == 1:
		return text + "th"
	}
	return text + suffix
}

// line is one result: [metric], measurement, value.
type line struct {
	Metric      string          `json:"metric"`
	Measurement string          `json:"measurement"`
	Value       json.RawMessage `json:"value"`
}

// WriteText writes YCSB's lines, or the JSON of the exporter that the properties name.
func WriteText(w io.Writer, r *Report) error {
	b := bufio.NewWriter(w)
	lines := r.lines()
	switch r.measure.exporter {
	case "json", "jsonarray":
		var texts []string
		for _, l := range lines {
			raw, err := json.Marshal(l)
			if err != nil {
				return err
			}
			texts = append(texts, string(raw))
		}
		if r.measure.exporter == "json" {
			fmt.Fprintln(b, strings.Join(texts, "\n"))
		} else {
			fmt.Fprintf(b, "[%s]\n", strings.Join(texts, ",\n"))
		}
	default:
		for _, l := range lines {
			fmt.Fprintf(b, "[%s], %s, %s\n", l.Metric, l.Measurement, l.Value)
		}
	}
	return b.Flush()
}

func (r *Report) lines() []line {
	var out []line
	add := func(metric, measurement, value string) {
		out = append(out, line{metric, measurement, json.RawMessage(value)})
	}
	integer := func(n int64) string { return strconv.FormatInt(n, 10) }
	millis := int64(r.Seconds * 1000)
	add("OVERALL", "RunTime(ms)", integer(millis))
	add("OVERALL", "Throughput(ops/sec)", double(r.Throughput))
	add("TOTAL_GCs", "Count", integer(r.Client.GCs))
	add("TOTAL_GC_TIME", "Time(ms)", integer(int64(r.Client.GCPause)))
	add("TOTAL_GC_TIME_%", "Time(%)", double(r.Client.GCPause/max(r.Seconds*1000, 1)*100))
	hdr := r.measure.kind != "histogram" && r.measure.kind != "timeseries"
	for _, s := range r.Series {
		add(s.Name, "Operations", integer(s.Operations))
		if s.Operations > 0 {
			add(s.Name, "AverageLatency(us)", double(s.Average))
			add(s.Name, "MinLatency(us)", integer(s.Min))
			add(s.Name, "MaxLatency(us)", integer(s.Max))
			for _, p := range s.percentiles {
				add(s.Name, ordinal(p.p)+"PercentileLatency(us)", integer(p.value))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.Returns)) {
			add(s.Name, "Return="+name, integer(s.Returns[name]))
		}
		if s.millis != nil {
			for i, n := range s.millis[:len(s.millis)-1] {
				add(s.Name, integer(int64(i)), integer(n))
			}
			add(s.Name, ">"+strconv.Itoa(len(s.millis)-1), integer(s.millis[len(s.millis)-1]))
		}
		if !hdr && s.millis == nil {
			for _, p := range r.Course {
				if l, ok := p.Latency[s.Name]; ok {
					add(s.Name, integer(int64(p.Seconds*1000)), double(l.Average))
				}
			}
		}
	}
	return out
}

// double writes a number as Java does in this range: always with a point.
func double(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// CPUTime is the processor time of this process so far.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
