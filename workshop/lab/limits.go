package lab

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ErrNoDisk reports a machine without small file systems: they need Linux and root or user namespaces.
var ErrNoDisk = errors.New("lab: no small disks here (Linux, and root or user namespaces)")

// NewDisk mounts an empty file system of mb megabytes in memory at dir, until end is called; use it by [Disk.Path].
// The error is ErrNoDisk where there can be none.
func NewDisk(dir string, mb int) (d *Disk, end func() error, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, nil, err
	}
	if d, err = newDisk(dir, mb); err != nil {
		return nil, nil, err
	}
	return d, d.close, nil
}

// Disk is the member's small disk, nil without Options.DiskMB.
func (m *Member) Disk() *Disk { return m.disk }

// startDisks gives each member a disk of its own, if the options want it.
func (c *Cluster) startDisks() error {
	for _, m := range c.members {
		if c.opts.DiskMB == 0 || m.disk != nil {
			continue
		}
		d, err := newDisk(m.DBPath, c.opts.DiskMB)
		if err != nil {
			return err
		}
		m.disk, m.DBPath = d, d.Path()
	}
	return nil
}

// ErrNoQuota reports a machine that limits no processors: it takes Linux, control groups and the right to them.
var ErrNoQuota = errors.New("lab: no processor quotas here (they need control groups of Linux, and root to make them)")

// limit holds a member that has just been started to its processors. The caller holds m.mu.
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

// ErrNoSlowDisk says that this machine cannot slow a process' disk.
var ErrNoSlowDisk = errors.New(
	"lab: no slowed disks here (they need Linux 5.9 or newer on amd64 or arm64, and leave to filter system calls)")

// DiskSpeed is how fast a disk is. Each read, write and flush takes one of PerSecond turns, and then the latency.
// There is no page cache: a write waits as a read does.
type DiskSpeed struct {
	Latency   time.Duration `json:"latencyNanoseconds"`  // Latency that each operation has beyond its own.
	PerSecond int           `json:"operationsPerSecond"` // PerSecond is the most operations a second, 0 for no limit.
}

// Slow says that anything is slowed.
func (s DiskSpeed) Slow() bool { return s != DiskSpeed{} }

// String is the speed in words.
func (s DiskSpeed) String() string {
	if !s.Slow() {
		return "as it is"
	}
	text := s.Latency.String() + " an operation"
	if s.PerSecond > 0 {
		text += ", at most " + strconv.Itoa(s.PerSecond) + "/s"
	}
	return text
}

// ParseDiskSpeed reads "500us", "500us:4000" (operations a second), or "0" for a disk as it is.
func ParseDiskSpeed(s string) (d DiskSpeed, err error) {
	latency, most, limited := strings.Cut(s, ":")
	d.Latency, err = time.ParseDuration(latency)
	if err == nil && limited {
		d.PerSecond, err = strconv.Atoi(most)
	}
	if err != nil || d.Latency < 0 || d.PerSecond < 0 {
		return DiskSpeed{},
			fmt.Errorf("disk %q: want a latency and perhaps the most operations a second, such as 500us:4000, or 0", s)
	}
	return d, nil
}

// DiskUse is what was asked of a slowed disk so far, and what to slow it cost.
type DiskUse struct {
	Reads, Writes, Flushes int64
	CPU                    time.Duration // CPU is the processor time of this process that went into the slowing.
}

// Minus is what came after before.
func (u DiskUse) Minus(before DiskUse) DiskUse {
	return DiskUse{u.Reads - before.Reads, u.Writes - before.Writes, u.Flushes - before.Flushes, u.CPU - before.CPU}
}

// DiskUse is what the member asked of its slowed disk since its start; zero without [Options.DiskSpeed].
func (m *Member) DiskUse() DiskUse {
	if m.slow == nil {
		return DiskUse{}
	}
	return m.slow.use()
}
