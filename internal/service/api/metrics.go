package api

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
)

type gauges struct {
	jobs              []service.Job
	alerts            []service.Alert
	workers           int
	version, revision string
}

// Describe implements prometheus.Collector. The metrics depend on the jobs.
func (g *gauges) Describe(chan<- *prometheus.Desc) {}

type figures chan<- prometheus.Metric

func (f figures) send(kind prometheus.ValueType, name, help string, value float64, labels prometheus.Labels) {
	f <- prometheus.MustNewConstMetric(prometheus.NewDesc("millrace_"+name, help, nil, labels), kind, value)
}

func (f figures) gauge(name, help string, value float64, labels prometheus.Labels) {
	f.send(prometheus.GaugeValue, name, help, value, labels)
}

// known omits unknown values, which are negative.
func (f figures) known(name, help string, value float64, labels prometheus.Labels) {
	if value >= 0 {
		f.gauge(name, help, value, labels)
	}
}

func (f figures) count(name, help string, value int64, labels prometheus.Labels) {
	f.send(prometheus.CounterValue, name, help, float64(value), labels)
}

func (g *gauges) Collect(out chan<- prometheus.Metric) {
	f := figures(out)
	f.gauge("build_info", "The program that answers; always 1.", 1,
		prometheus.Labels{"version": g.version, "revision": g.revision})
	f.gauge("workers", "Workers that are there.", float64(g.workers), nil)
	for _, a := range g.alerts {
		f.gauge("alert", "What an operator should know of a job: 1 for each alert that fires.", 1,
			prometheus.Labels{"job": a.Job, "kind": string(a.Kind)})
	}
	for i := range g.jobs {
		s := summary(&g.jobs[i])
		f.gauge("job_state", "How a job stands: 1 for its present state.", 1,
			prometheus.Labels{"job": s.Name, "state": string(s.State)})
		if s.Phase == "" {
			continue
		}
		f.gauge("phase", "What a job does: 1 for its present phase.", 1,
			prometheus.Labels{"job": s.Name, "phase": string(s.Phase)})
		f.job(&s, g.jobs[i].Report.Status)
	}
}

func (f figures) job(s *Summary, st *job.Status) {
	of := prometheus.Labels{"job": s.Name}
	f.known("lag_seconds", "How far the target is behind the source.", s.LagSeconds, of)
	f.known("oplog_window_seconds",
		"Time until the source's oplog overwrites what the job needs, at its write rate.", s.WindowSeconds, of)
	if s.WindowSeconds >= 0 {
		f.gauge("oplog_window_held", "1 where what the source's oplog may overwrite is kept on local disk.",
			map[bool]float64{true: 1}[st.Follow.WindowHeld], of)
	}
	if h := st.Follow.Holding; h != nil {
		f.gauge("shard_silent_seconds", "Time since the last change of the shard of the source for which the others wait.",
			h.Seconds, prometheus.Labels{"job": s.Name, "shard": h.Shard})
	}
	f.parts(s.Name, st)
	f.count("copied_bytes_total", "Bytes of documents copied.", st.Copy.Bytes, of)
	f.count("copied_documents_total", "Documents copied.", st.Copy.Docs, of)
	f.count("applied_operations_total", "Operations applied since the job's run began.", st.Follow.Operations, of)
	f.count("conflicts_total", "Documents that the target refused, or that were taken off it to make room.",
		service.Refused(st), of)
}

func (f figures) parts(name string, st *job.Status) {
	const since = " since the job's run began."
	for _, s := range st.Shards {
		of := prometheus.Labels{"job": name, "shard": s.Shard}
		f.count("shard_copied_documents_total", "Documents copied from a shard of the source"+since, s.Docs, of)
		f.count("shard_copied_bytes_total", "Bytes of documents copied from a shard of the source"+since, s.Bytes, of)
		f.count("shard_read_changes_total", "Changes read in the oplog of a shard of the source"+since, s.Changes, of)
		f.count("shard_read_bytes_total", "Bytes read of the oplog of a shard of the source"+since, s.ChangeBytes, of)
		f.known("shard_lag_seconds", "How far what is known of a shard of the source is behind the source's newest change.",
			s.LagSeconds, of)
		f.known("shard_oplog_window_seconds",
			"Time until the oplog of this shard overwrites what the job needs, at its write rate.", s.WindowSeconds, of)
	}
	for _, r := range st.Routers {
		of := prometheus.Labels{"job": name, "router": r.Router}
		f.count("router_commands_total", "Commands sent to a router of the target"+since, r.Commands, of)
		f.count("router_sent_bytes_total", "Bytes sent to a router of the target"+since, r.Bytes, of)
	}
}

func (a *API) metrics(c *call) (any, error) {
	registry := prometheus.NewRegistry()
	g := &gauges{jobs: a.jobs.all(c.caller), workers: 1, version: a.o.Version, revision: a.o.Revision}
	if a.o.Desk != nil {
		g.alerts, _ = a.o.Desk.Alerts(c.caller, 0)
		g.workers = len(a.o.Desk.Workers())
	}
	if err := registry.Register(g); err != nil {
		return nil, err
	}
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError,
		DisableCompression: true}).ServeHTTP(c.w, c.Request)
	return sent{}, nil
}
