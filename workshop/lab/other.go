//go:build !linux

package lab

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

func (*alarm) wait(d time.Duration) error {
	time.Sleep(d)
	return nil
}

func (*alarm) close() {}

// Disk is a small file system of a member's own; there are none here.
type Disk struct{}

func newDisk(string, int) (*Disk, error) { return nil, ErrNoDisk }

// Fill is not possible here.
func (d *Disk) Fill(context.Context) error { return ErrNoDisk }

// Free is not possible here.
func (d *Disk) Free() error { return ErrNoDisk }

// Path is empty here.
func (d *Disk) Path() string { return "" }

func (d *Disk) close() error { return nil }

// FilesInMemory reports that the directory of temporary clusters is a file system in memory.
func FilesInMemory() bool { return false }

// errOnlyLinux says that clusters which outlive their starter are not to be had.
var errOnlyLinux = errors.New("cannot identify processes: this takes Linux")

func startTime(int) (uint64, error) { return 0, errOnlyLinux }

func hasArgument(int, string) bool { return false }

func (id Identity) signal(syscall.Signal) error { return errOnlyLinux }

func (id Identity) exited() bool { return true }

func connectionOwner(net.Conn, []int) int { return client }

// childAttr gives a child its own process group: Ctrl-C reaches only the starter, which cannot end it by dying.
func childAttr(detached bool) *syscall.SysProcAttr {
	if detached {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true}
}

// LimitProcess is not possible here.
func LimitProcess(int, float64) (release func() error, err error) { return nil, ErrNoQuota }

type slowDisk struct{ speed atomic.Pointer[DiskSpeed] }

func newSlowDisk(DiskSpeed) *slowDisk { return &slowDisk{} }

func (*slowDisk) confine() error { return ErrNoSlowDisk }

func (*slowDisk) close() {}

func onFirstThread() bool { return false }
