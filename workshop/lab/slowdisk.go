package lab

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrNoSlowDisk says that this machine cannot slow a process' disk.
var ErrNoSlowDisk = errors.New("lab: no slowed disks here (they need Linux 5.9 or newer on amd64 or arm64, and leave to filter system calls)")

// DiskSpeed is how fast a disk is. Each read, write and flush takes a turn of
// which there are PerSecond, and then the latency; those of several threads
// overlap. No page cache stands before it: a write waits as a read does.
type DiskSpeed struct {
	// Latency that each operation has beyond its own.
	Latency time.Duration `json:"latencyNanoseconds"`
	// PerSecond is the most operations a second, 0 for no limit.
	PerSecond int `json:"operationsPerSecond"`
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

// ParseDiskSpeed reads "500us", "500us:4000" (operations a second), or "0" for
// a disk as it is.
func ParseDiskSpeed(s string) (d DiskSpeed, err error) {
	latency, most, limited := strings.Cut(s, ":")
	d.Latency, err = time.ParseDuration(latency)
	if err == nil && limited {
		d.PerSecond, err = strconv.Atoi(most)
	}
	if err != nil || d.Latency < 0 || d.PerSecond < 0 {
		return DiskSpeed{}, fmt.Errorf("disk %q: want a latency and perhaps the most operations a second, such as 500us:4000, or 0", s)
	}
	return d, nil
}

// DiskUse is what was asked of a slowed disk so far, and what to slow it cost.
type DiskUse struct {
	Reads, Writes, Flushes int64
	// CPU is the processor time of this process that went into the slowing.
	CPU time.Duration
}

// Minus is what came after before.
func (u DiskUse) Minus(before DiskUse) DiskUse {
	return DiskUse{u.Reads - before.Reads, u.Writes - before.Writes, u.Flushes - before.Flushes, u.CPU - before.CPU}
}

// DiskUse is what the member has asked of its slowed disk since it was started;
// all zero without [Options.DiskSpeed].
func (m *Member) DiskUse() DiskUse {
	if m.slow == nil {
		return DiskUse{}
	}
	return m.slow.use()
}
