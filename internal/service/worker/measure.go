package worker

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/service"
)

// meter makes points of what a job says of itself.
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
	// Its end is as much later as time has passed, also where the wall clock was set meanwhile.
	p := &service.Point{From: m.at.UTC(), To: m.at.Add(now.Sub(m.at)).UTC(), Seconds: n,
		Docs: service.NewAmount(done.Docs-m.done.Docs, n), Bytes: service.NewAmount(done.Bytes-m.done.Bytes, n),
		Operations:   service.NewAmount(done.Operations-m.done.Operations, n),
		AppliedBytes: service.NewAmount(done.AppliedBytes-m.done.AppliedBytes, n),
		Lag:          service.NewRange(s.Follow.LagSeconds, n), Window: service.NewRange(s.Follow.WindowSeconds, n),
		CPU: service.NewRange(100*max(use.CPUSeconds-m.cpu, 0)/n, n), Memory: service.NewRange(float64(use.Resident), n)}
	p.Shards, p.Routers = m.shards(s.Shards, done.Shards, n), m.routers(done.Routers, n)
	m.at, m.done, m.cpu = now, done, use.CPUSeconds
	return p
}

// named is the one of a name, the zero value where there is none.
func named[T any](list []T, name string, of func(T) string) (one T, ok bool) {
	if i := slices.IndexFunc(list, func(o T) bool { return of(o) == name }); i >= 0 {
		return list[i], true
	}
	return one, false
}

// shards are those of a point of so many seconds.
func (m *meter) shards(now []job.ShardStatus, done []job.ShardDone, seconds float64) (list []service.ShardPoint) {
	amount := func(now, was int64) service.Amount { return service.NewAmount(now-was, seconds) }
	for _, d := range done {
		was, _ := named(m.done.Shards, d.Shard, func(o job.ShardDone) string { return o.Shard })
		p := service.ShardPoint{Shard: d.Shard, Seconds: seconds, Docs: amount(d.Docs, was.Docs),
			Bytes: amount(d.Bytes, was.Bytes), Changes: amount(d.Changes, was.Changes),
			ChangeBytes: amount(d.ChangeBytes, was.ChangeBytes)}
		if s, ok := named(now, d.Shard, func(o job.ShardStatus) string { return o.Shard }); ok {
			p.Lag, p.Window = service.NewRange(s.LagSeconds, seconds), service.NewRange(s.WindowSeconds, seconds)
		}
		list = append(list, p)
	}
	return list
}

// routers are those of a point of so many seconds.
func (m *meter) routers(done []job.RouterDone, seconds float64) (list []service.RouterPoint) {
	for _, d := range done {
		was, _ := named(m.done.Routers, d.Router, func(o job.RouterDone) string { return o.Router })
		list = append(list, service.RouterPoint{Router: d.Router, Seconds: seconds,
			Commands: service.NewAmount(d.Commands-was.Commands, seconds),
			Bytes:    service.NewAmount(d.Bytes-was.Bytes, seconds)})
	}
	return list
}
