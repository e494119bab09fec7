package lab

import (
	"errors"
	"os/exec"
	"path/filepath"
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

// DiskSpeed is how fast a disk is. Each read, write and flush takes one of PerSecond turns, and then the latency. As
// cloud disks count, a turn moves up to 256 KiB, and what follows at once in a file belongs to it. There is no page
// cache: a write waits as a read does.
type DiskSpeed struct {
	Latency   time.Duration // Latency that each operation has beyond its own.
	PerSecond int           // PerSecond is the most operations a second, 0 for no limit.
}

// Slow says that anything is slowed.
func (s DiskSpeed) Slow() bool { return s != DiskSpeed{} }

// SlowDisks changes how fast the members' disks are: at once for members started with a slowed disk, else from their
// next start. Call it while no member starts.
func (c *Cluster) SlowDisks(s DiskSpeed) {
	c.opts.DiskSpeed = s
	for _, m := range c.members {
		if m.slow != nil {
			m.slow.speed.Store(&s)
		}
	}
}

// StartSlowed starts a child as [StartChild] does. The disk is that of all processes that come from it.
func StartSlowed(cmd *exec.Cmd, disk DiskSpeed) (*Child, error) {
	if !disk.Slow() {
		return StartChild(cmd)
	}
	return startChild(cmd, false, newSlowDisk(disk).confine)
}
