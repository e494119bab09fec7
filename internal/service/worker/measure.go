package worker

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/service"
)

type meter struct {
	every time.Duration
	at    time.Time
	done  job.Done
	cpu   float64
}

// newMeter begins now, with nothing done.
func newMeter(every time.Duration) *meter {
	return &meter{every: every, at: time.Now(), cpu: procstat.Read().CPUSeconds}
}

// look makes a point when it is time for one, or at the end; nil where it is not.
func (m *meter) look(s *job.Status, done job.Done, end bool) *service.Point {
	now := time.Now()
	n := now.Sub(m.at).Seconds()
	if n <= 0 || !end && n < (m.every-lookEvery/2).Seconds() {
		return nil
	}
	use := procstat.Read()
	p := figures("", n, done.Docs-m.done.Docs, done.Bytes-m.done.Bytes, done.Operations-m.done.Operations,
		done.AppliedBytes-m.done.AppliedBytes)
	// Its end is as much later as time has passed, also where the wall clock was set meanwhile.
	p.From, p.To = m.at.UTC(), m.at.Add(now.Sub(m.at)).UTC()
	p.Lag, p.Window = service.NewRange(s.Follow.LagSeconds, n), service.NewRange(s.Follow.WindowSeconds, n)
	p.CPU, p.Memory = service.NewRange(100*max(use.CPUSeconds-m.cpu, 0)/n, n), service.NewRange(float64(use.Resident), n)
	for _, d := range done.Shards {
		was := named(m.done.Shards, d.Shard, func(o job.ShardDone) string { return o.Shard })
		part := figures(d.Shard, n, d.Docs-was.Docs, d.Bytes-was.Bytes, d.Changes-was.Changes, d.ChangeBytes-was.ChangeBytes)
		if s := named(s.Shards, d.Shard, func(o job.ShardStatus) string { return o.Shard }); s.Shard != "" {
			part.Lag, part.Window = service.NewRange(s.LagSeconds, n), service.NewRange(s.WindowSeconds, n)
		}
		p.Shards = append(p.Shards, part)
	}
	for _, d := range done.Routers {
		was := named(m.done.Routers, d.Router, func(o job.RouterDone) string { return o.Router })
		p.Routers = append(p.Routers, figures(d.Router, n, 0, 0, d.Commands-was.Commands, d.Bytes-was.Bytes))
	}
	m.at, m.done, m.cpu = now, done, use.CPUSeconds
	return &p
}

// figures makes a point of what was done in so many seconds.
func figures(name string, seconds float64, done ...int64) service.Point {
	amount := func(i int) service.Amount { return service.NewAmount(done[i], seconds) }
	return service.Point{Name: name, Seconds: seconds, Docs: amount(0), Bytes: amount(1), Operations: amount(2),
		AppliedBytes: amount(3)}
}

func named[T any](list []T, name string, of func(T) string) (one T) {
	if i := slices.IndexFunc(list, func(o T) bool { return of(o) == name }); i >= 0 {
		return list[i]
	}
	return one
}
