package api

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace/millrace/internal/service"
)

// gauges is what is measured of the jobs that somebody sees. It is made for a request,
// since each sees jobs of their own.
type gauges struct {
	jobs              []service.Job
	alerts            []service.Alert
	workers           int
	version, revision string
}

// Describe implements prometheus.Collector: what there is depends on the jobs.
func (g *gauges) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, name, help string, value float64, labels map[string]string) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("millrace_"+name, help, nil, labels), kind, value)
	}
	send(prometheus.GaugeValue, "build_info", "The program that answers; always 1.", 1,
		map[string]string{"version": g.version, "revision": g.revision})
	send(prometheus.GaugeValue, "workers", "Workers that are there.", float64(g.workers), nil)
	for _, a := range g.alerts {
		send(prometheus.GaugeValue, "alert", "What an operator should know of a job: 1 for each alert that fires.", 1,
			map[string]string{"job": a.Job, "kind": string(a.Kind)})
	}
	for i := range g.jobs {
		s := summary(&g.jobs[i])
		job := map[string]string{"job": s.Name}
		send(prometheus.GaugeValue, "job_state", "How a job stands: 1 for its present state.", 1,
			map[string]string{"job": s.Name, "state": string(s.State)})
		if s.Phase == "" {
			continue
		}
		st := g.jobs[i].Report.Status
		send(prometheus.GaugeValue, "phase", "What a job does: 1 for its present phase.", 1,
			map[string]string{"job": s.Name, "phase": string(s.Phase)})
		if s.LagSeconds >= 0 {
			send(prometheus.GaugeValue, "lag_seconds", "How far the target is behind the source.", s.LagSeconds, job)
		}
		if s.WindowSeconds >= 0 {
			send(prometheus.GaugeValue, "oplog_window_seconds",
				"How much further behind it may fall before the source's oplog has lost what it needs.", s.WindowSeconds, job)
		}
		if s.WindowSeconds >= 0 {
			send(prometheus.GaugeValue, "oplog_window_held", "1 where the source's oplog forgets nothing that is needed: it "+
				"has room left, or the changes are kept on local disk.", bit(st.Follow.WindowHeld), job)
		}
		if h := st.Follow.Holding; h != nil {
			send(prometheus.GaugeValue, "shard_silent_seconds", "For how long a shard of the source for which the others wait "+
				"has told of nothing new.", h.Seconds, map[string]string{"job": s.Name, "shard": h.Shard})
		}
		g.parts(send, s.Name, st)
		send(prometheus.CounterValue, "copied_bytes_total", "Bytes of documents copied.", float64(st.Copy.Bytes), job)
		send(prometheus.CounterValue, "copied_documents_total", "Documents copied.", float64(st.Copy.Docs), job)
		send(prometheus.CounterValue, "applied_operations_total", "Operations applied since the job's run began.",
			float64(st.Follow.Operations), job)
		send(prometheus.CounterValue, "conflicts_total",
			"Documents that the target refused, or that were taken off it to make room.",
			float64(service.Refused(st)), job)
	}
}

func bit(b bool) float64 { return map[bool]float64{true: 1}[b] }

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
