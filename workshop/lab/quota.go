package lab

import "errors"

// ErrNoQuota says that this machine limits the processors of no process: that
// takes Linux, control groups and the right to make them.
var ErrNoQuota = errors.New("lab: no processor quotas here (they need control groups of Linux, and root to make them)")

// limit holds a member that has just been started to its processors. The
// caller holds m.mu.
func (m *Member) limit(pid int) (err error) {
	if m.cluster.opts.Cores == 0 {
		return nil
	}
	m.unlimit, err = LimitProcess(pid, m.cluster.opts.Cores)
	return err
}

// freed gives back what the member's limits needed, after its end.
func (m *Member) freed() error {
	if m.slow != nil {
		m.slow.close()
	}
	release := m.unlimit
	m.unlimit = nil
	if release == nil {
		return nil
	}
	return release()
}
