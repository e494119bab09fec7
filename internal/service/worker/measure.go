package worker

import (
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
		Operations: service.NewAmount(done.Operations-m.done.Operations, n), AppliedBytes: service.NewAmount(done.AppliedBytes-m.done.AppliedBytes, n),
		Lag: service.NewRange(s.Follow.LagSeconds, n), Window: service.NewRange(s.Follow.WindowSeconds, n),
		CPU: service.NewRange(100*max(use.CPUSeconds-m.cpu, 0)/n, n), Memory: service.NewRange(float64(use.Resident), n)}
	m.at, m.done, m.cpu = now, done, use.CPUSeconds
	return p
}
