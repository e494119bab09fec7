package ycsb

import (
	"context"
	"time"
)

// pacer tells one thread when its operations are due: evenly, whatever the
// operations before took. A late thread catches up without a pause.
type pacer struct {
	next  time.Time
	every time.Duration
	timer *time.Timer
}

// newPacer is nil when there is no target. The threads begin one after the
// other within the first period.
func newPacer(target float64, thread, threads int, start time.Time) *pacer {
	if target <= 0 {
		return nil
	}
	every := time.Duration(float64(threads) / target * float64(time.Second))
	return &pacer{next: start.Add(every / time.Duration(threads) * time.Duration(thread)), every: every}
}

// wait waits until the next operation is due and returns when that was meant
// to be, the zero time without a target.
func (p *pacer) wait(ctx context.Context) time.Time {
	if p == nil {
		return time.Time{}
	}
	due := p.next
	p.next = due.Add(p.every)
	left := time.Until(due)
	if left <= 0 {
		return due
	}
	if p.timer == nil {
		p.timer = time.NewTimer(left)
	} else {
		p.timer.Reset(left)
	}
	select {
	case <-p.timer.C:
	case <-ctx.Done():
		p.timer.Stop()
	}
	return due
}
