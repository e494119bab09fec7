package console

import (
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
)

// shardRow is a shard of the source as it stands.
type shardRow struct{ Shard, Copied, Changes, Rate, Bytes, Lag, Window, At string }

// routerRow is a router of the target.
type routerRow struct{ Router, Commands, Rate, Sent, Bytes string }

func shardRows(s *job.Status) (list []shardRow) {
	for _, one := range s.Shards {
		list = append(list, shardRow{one.Shard, shown.Count(float64(one.Docs)), shown.Count(float64(one.Changes)),
			few(one.DocsRate + one.ChangesRate),
			perSecond(one.BytesRate + one.ChangeBytesRate), shown.Seconds(one.LagSeconds), shown.Seconds(one.WindowSeconds),
			one.At})
	}
	return list
}

func routerRows(s *job.Status) (list []routerRow) {
	for _, one := range s.Routers {
		list = append(list, routerRow{one.Router, shown.Count(float64(one.Commands)), few(one.CommandsRate),
			shown.Size(float64(one.Bytes)), perSecond(one.BytesRate)})
	}
	return list
}

// holding is the shard for which the others wait, where that takes longer than it does
// again and again.
func holding(s *job.Status) *job.Holding {
	if h := s.Follow.Holding; h != nil && h.Seconds >= 1 {
		return h
	}
	return nil
}
