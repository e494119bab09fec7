package ycsb

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// line is one result: [metric], measurement, value.
type line struct {
	Metric      string          `json:"metric"`
	Measurement string          `json:"measurement"`
	Value       json.RawMessage `json:"value"`
}

// WriteText writes the result as YCSB does: lines, or the JSON of its
// exporters when the property exporter names one.
func WriteText(w io.Writer, r *Report) error {
	b := bufio.NewWriter(w)
	lines := r.lines()
	switch r.measure.exporter {
	case "json", "jsonarray":
		array := r.measure.exporter == "jsonarray"
		if array {
			fmt.Fprint(b, "[")
		}
		for i, l := range lines {
			raw, err := json.Marshal(l)
			if err != nil {
				return err
			}
			if array && i > 0 {
				fmt.Fprint(b, ",\n")
			}
			fmt.Fprintf(b, "%s", raw)
			if !array {
				fmt.Fprintln(b)
			}
		}
		if array {
			fmt.Fprintln(b, "]")
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
	whole := func(n int64) string { return strconv.FormatInt(n, 10) }
	millis := int64(r.Seconds * 1000)
	add("OVERALL", "RunTime(ms)", whole(millis))
	add("OVERALL", "Throughput(ops/sec)", double(r.Throughput))
	add("TOTAL_GCs", "Count", whole(r.Client.GCs))
	add("TOTAL_GC_TIME", "Time(ms)", whole(int64(r.Client.GCPause)))
	add("TOTAL_GC_TIME_%", "Time(%)", double(r.Client.GCPause/max(r.Seconds*1000, 1)*100))
	hdr := r.measure.kind != "histogram" && r.measure.kind != "timeseries"
	for _, s := range r.Series {
		add(s.Name, "Operations", whole(s.Operations))
		if s.Operations > 0 {
			add(s.Name, "AverageLatency(us)", double(s.Average))
			add(s.Name, "MinLatency(us)", whole(s.Min))
			add(s.Name, "MaxLatency(us)", whole(s.Max))
			for _, p := range s.percentiles {
				add(s.Name, ordinal(p.p)+"PercentileLatency(us)", whole(p.value))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.Returns)) {
			add(s.Name, "Return="+name, whole(s.Returns[name]))
		}
		if s.millis != nil {
			for i, n := range s.millis[:len(s.millis)-1] {
				add(s.Name, whole(int64(i)), whole(n))
			}
			add(s.Name, ">"+strconv.Itoa(len(s.millis)-1), whole(s.millis[len(s.millis)-1]))
		}
		if !hdr && s.millis == nil {
			for _, p := range r.Course {
				if l, ok := p.Latency[s.Name]; ok {
					add(s.Name, whole(int64(p.Seconds*1000)), double(l.Average))
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
