package lab

import (
	"container/heap"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// slowDisk holds the system calls by which one process reads, writes and
// flushes its files until they are due, and then lets the kernel do them.
//
// The kernel stops such a call at a filter (seccomp) that the process inherits
// and tells this process of it. Neither root nor a file system of its own is
// needed, and what the calls do stays the kernel's. Only calls with an offset
// are met, as databases make them; logs are written without.
type slowDisk struct {
	speed DiskSpeed
	fd    int
	done  chan struct{} // closed when nobody has the filter any more

	reads, writes, flushes atomic.Int64
	cpu                    atomic.Int64 // nanoseconds
}

func newSlowDisk(speed DiskSpeed) *slowDisk {
	return &slowDisk{speed: speed, done: make(chan struct{})}
}

// close waits until nothing is held any more; all that had the filter have
// ended, or never began.
func (d *slowDisk) close() {
	if d.fd != 0 {
		<-d.done
	}
}

func (d *slowDisk) use() DiskUse {
	return DiskUse{d.reads.Load(), d.writes.Load(), d.flushes.Load(), time.Duration(d.cpu.Load())}
}

// confine puts the filter on the calling thread, which must be locked to its
// goroutine and end with it, and on all that it starts from now on. Their calls
// are served until the last of them has ended.
func (d *slowDisk) confine() error {
	filter, err := diskFilter()
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("%w: %w", ErrNoSlowDisk, err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("%w: %w", ErrNoSlowDisk, errno)
	}
	d.fd = int(fd)
	go d.serve()
	return nil
}

func onFirstThread() bool { return unix.Gettid() == unix.Getpid() }

// calls are those that are held, by what they do.
func (d *slowDisk) calls() map[int32]*atomic.Int64 {
	return map[int32]*atomic.Int64{
		unix.SYS_PREAD64: &d.reads, unix.SYS_PREADV: &d.reads,
		unix.SYS_PWRITE64: &d.writes, unix.SYS_PWRITEV: &d.writes,
		unix.SYS_FSYNC: &d.flushes, unix.SYS_FDATASYNC: &d.flushes,
	}
}

// diskFilter is the filter as a program for the kernel.
func diskFilter() ([]unix.SockFilter, error) {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNoSlowDisk, runtime.GOARCH)
	}
	const atNumber, atArch = 0, 4 // in the kernel's struct seccomp_data
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	end := func(how uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: how} }
	// skip passes the next instruction over when the value is another one.
	skip := func(unless uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unless, Jf: 1}
	}
	all := []unix.SockFilter{load(atArch), {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: arch, Jt: 1}, end(unix.SECCOMP_RET_ALLOW), load(atNumber)}
	for nr := range (&slowDisk{}).calls() {
		all = append(all, skip(uint32(nr)), end(unix.SECCOMP_RET_USER_NOTIF))
	}
	return append(all, end(unix.SECCOMP_RET_ALLOW)), nil
}

// heldCall and letGo are the kernel's struct seccomp_notif and
// seccomp_notif_resp.
type heldCall struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	at         uint64
	args       [6]uint64
}

type letGo struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// held is a call that waits for its time.
type held struct {
	id  uint64
	due time.Time
}

// heldCalls are those that wait, the next first.
type heldCalls []held

func (h heldCalls) Len() int           { return len(h) }
func (h heldCalls) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h heldCalls) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *heldCalls) Push(x any) { *h = append(*h, x.(held)) }

// Pop implements heap.Interface.
func (h *heldCalls) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// serve takes calls and lets them go when they are due. It has a thread of its
// own: the kernel's clock is finer than timers of Go on a busy machine, and the
// thread's processor time is what slowing costs. A thread of the callers has at
// most one call here.
func (d *slowDisk) serve() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(d.done)
	defer unix.Close(d.fd)
	before := threadCPU()
	var waiting heldCalls
	var turn time.Time // of the next call
	calls := d.calls()
	fds := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}
	for {
		var wait *unix.Timespec // until a call comes
		if len(waiting) > 0 {
			left := unix.NsecToTimespec(max(int64(time.Until(waiting[0].due)), 0))
			wait = &left
		}
		fds[0].Revents = 0
		_, err := unix.Ppoll(fds, wait, nil)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return
		case fds[0].Revents&unix.POLLIN != 0:
			if c, ok := d.take(); ok {
				if n := calls[c.number]; n != nil {
					n.Add(1)
				}
				heap.Push(&waiting, held{c.id, d.due(&turn)})
			}
		case fds[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0:
			return
		}
		for now := time.Now(); len(waiting) > 0 && !waiting[0].due.After(now); {
			d.goOn(heap.Pop(&waiting).(held).id)
		}
		d.cpu.Store(int64(threadCPU() - before))
	}
}

// due is when a call that has just come is to go on; turn is moved on.
func (d *slowDisk) due(turn *time.Time) time.Time {
	mine := time.Now()
	if turn.After(mine) {
		mine = *turn
	}
	*turn = mine
	if d.speed.PerSecond > 0 {
		*turn = mine.Add(time.Second / time.Duration(d.speed.PerSecond))
	}
	return mine.Add(d.speed.Latency)
}

// take takes the next call; false when its thread has ended meanwhile.
func (d *slowDisk) take() (heldCall, bool) {
	var c heldCall
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&c)))
	return c, errno == 0
}

// goOn has the kernel do a call. That its thread has ended does not matter.
func (d *slowDisk) goOn(id uint64) {
	r := letGo{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
}

// threadCPU is the processor time of the calling thread.
func threadCPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
