package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/job"
)

// parts are the figures of a job's shards and routers.
func (g *gauges) parts(send func(kind prometheus.ValueType, name, help string, value float64, labels map[string]string),
	name string, st *job.Status) {
	for _, s := range st.Shards {
		labels := map[string]string{"job": name, "shard": s.Shard}
		count := func(name, help string, v int64) {
			send(prometheus.CounterValue, "shard_"+name, help, float64(v), labels)
		}
		count("copied_documents_total", "Documents copied from a shard of the source since the job's run began.", s.Docs)
		count("copied_bytes_total", "Bytes of documents copied from a shard of the source since the job's run began.",
			s.Bytes)
		count("read_changes_total", "Changes read in the oplog of a shard of the source since the job's run began.",
			s.Changes)
		count("read_bytes_total", "Bytes read of the oplog of a shard of the source since the job's run began.",
			s.ChangeBytes)
		if s.LagSeconds >= 0 {
			send(prometheus.GaugeValue, "shard_lag_seconds",
				"How far what is known of a shard of the source is behind the source's newest change.", s.LagSeconds, labels)
		}
		if s.WindowSeconds >= 0 {
			send(prometheus.GaugeValue, "shard_oplog_window_seconds", "How much further behind a job may fall before the "+
				"oplog of this shard has lost what it needs.", s.WindowSeconds, labels)
		}
	}
	for _, r := range st.Routers {
		labels := map[string]string{"job": name, "router": r.Router}
		send(prometheus.CounterValue, "router_commands_total",
			"Commands sent to a router of the target since the job's run began.", float64(r.Commands), labels)
		send(prometheus.CounterValue, "router_sent_bytes_total",
			"Bytes sent to a router of the target since the job's run began.", float64(r.Bytes), labels)
	}
}
