package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/spawn"
)

// Disk is a small file system of a member's own, in memory, that can be full. It is mounted in the mount namespace
// of a helper process and reached through its entry in /proc, so it takes no root and ends with its starter.
type Disk struct {
	path string // as this and other processes see it
	size int64

	mu    sync.Mutex // keeps the exchanges with the helper apart
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader

	end   sync.Once
	ended error
}

// diskScript mounts and then resizes to each size read.
const diskScript = `mount -t tmpfs -o size="$2",mode=700 millrace "$1" && echo done || exit 1
while read -r size; do mount -o remount,size="$size" "$1" && echo done || echo failed; done`

// newDisk mounts a file system of mb megabytes. dir is made and hidden by it.
func newDisk(dir string, mb int) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lab: make a small disk: %w", err)
	}
	d := &Disk{size: int64(mb) << 20}
	d.cmd = spawn.Command("sh", "-c", diskScript, "sh", dir, strconv.FormatInt(d.size, 10)) // ended by close
	d.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	var said strings.Builder
	d.cmd.Stderr = &said
	out, err1 := d.cmd.StdoutPipe()
	in, err2 := d.cmd.StdinPipe()
	if err := errors.Join(err1, err2, d.cmd.Start()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDisk, err)
	}
	d.in, d.lines = in, bufio.NewReader(out)
	if err := d.answer(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w: %s", ErrNoDisk, err, strings.TrimSpace(said.String())), d.close())
	}
	d.path = filepath.Join("/proc", strconv.Itoa(d.cmd.Process.Pid), "root", dir)
	return d, nil
}

// Fill leaves no room for more than what is on the disk now.
func (d *Disk) Fill(ctx context.Context) error {
	return Poll(ctx, time.Millisecond, func() (bool, error) {
		used, err := d.used()
		if err != nil {
			return false, err
		}
		return d.resize(used) == nil, nil // else more was written meanwhile
	})
}

// Free gives the disk its first size back.
func (d *Disk) Free() error { return d.resize(d.size) }

// Path is where the disk is.
func (d *Disk) Path() string { return d.path }

func (d *Disk) used() (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.path, &st); err != nil {
		return 0, fmt.Errorf("lab: ask how full %s is: %w", d.path, err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, nil
}

func (d *Disk) resize(size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := fmt.Fprintln(d.in, max(size, 4096)); err != nil {
		return fmt.Errorf("lab: resize %s: %w", d.path, err)
	}
	return d.answer()
}

// answer reads what the helper says.
func (d *Disk) answer() error {
	line, err := d.lines.ReadString('\n')
	if err != nil {
		return fmt.Errorf("lab: the helper of a small disk ended: %w", err)
	}
	if line != "done\n" {
		return fmt.Errorf("lab: resize %s: %s", d.path, strings.TrimSpace(line))
	}
	return nil
}

// close ends the helper, once; what still has a file open there keeps the rest.
func (d *Disk) close() error {
	d.end.Do(func() {
		_ = d.in.Close()
		var exit *exec.ExitError
		if err := d.cmd.Wait(); err != nil && !errors.As(err, &exit) {
			d.ended = fmt.Errorf("lab: end the helper of a small disk: %w", err)
		}
	})
	return d.ended
}

// FilesInMemory reports that temporary clusters are in memory (magic numbers of statfs(2)).
func FilesInMemory() bool {
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	var st syscall.Statfs_t
	if err := syscall.Statfs(parent(), &st); err != nil {
		return false
	}
	kind := int64(st.Type) //nolint:unconvert // of another type on other systems
	return kind == tmpfs || kind == ramfs
}

// Control groups are mounted here on nearly every machine: the second version, or processors of the first.
const (
	groupsTwo = "/sys/fs/cgroup"
	groupsOne = "/sys/fs/cgroup/cpu"
)

// LimitProcess lets a process use only so many processors, which may be a part of one, by pausing it. release ends
// the limit, also after the process. The error is ErrNoQuota where there are no limits.
func LimitProcess(pid int, processors float64) (release func() error, err error) {
	above, two, err := ownGroup()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoQuota, err)
	}
	dir := filepath.Join(above, fmt.Sprintf("millrace-%d-%d", os.Getpid(), pid))
	release = func() error { return leaveGroup(above, dir, pid) }
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w: process %d: %w", ErrNoQuota, pid, err)
	}
	quota, period := quotaOf(processors)
	files := [][2]string{{"cpu.cfs_period_us", period}, {"cpu.cfs_quota_us", quota}}
	if two {
		files = [][2]string{{"cpu.max", quota + " " + period}}
	}
	for _, f := range append(files, [2]string{"cgroup.procs", strconv.Itoa(pid)}) {
		if err := writeGroup(dir, f[0], f[1]); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: process %d: %w", ErrNoQuota, pid, err), release())
		}
	}
	return release, nil
}

// quotaOf returns a quota and its period in microseconds; the kernel takes neither below a millisecond.
func quotaOf(processors float64) (quota, period string) {
	const least = 1000
	every := max(math.Ceil(least/processors), least)
	return strconv.Itoa(int(max(math.Round(every*processors), least))), strconv.Itoa(int(every))
}

func writeGroup(dir, file, text string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644) //nolint:gosec // files of the kernel, which exist
}

// ownGroup returns a control group that may have a limited one below it: this process's, or the one above.
func ownGroup() (dir string, two bool, err error) {
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false, fmt.Errorf("ask for the control group: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		switch {
		case slices.Contains(strings.Split(part[1], ","), "cpu"):
			dir = filepath.Join(groupsOne, part[2])
			if _, err := os.Stat(dir); err != nil {
				dir = groupsOne // what is above this container's is not to be seen
			}
			return dir, false, nil
		case part[0] == "0":
			dir, two = filepath.Join(groupsTwo, part[2]), true
		}
	}
	if !two {
		return "", false, fmt.Errorf("no control group limits processors: %w", errors.ErrUnsupported)
	}
	// Processes and groups with limits do not go into the same group, but for the topmost.
	if dir != groupsTwo {
		dir = filepath.Dir(dir)
	}
	on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil || !slices.Contains(strings.Fields(string(on)), "cpu") {
		return "", false,
			errors.Join(fmt.Errorf("the control group %s does not limit processors: %w", dir, errors.ErrUnsupported), err)
	}
	return dir, true, nil
}

// leaveGroup moves a process back and removes its group.
func leaveGroup(above, dir string, pid int) error {
	if err := writeGroup(above, "cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("move process %d back to its control group: %w", pid, err)
	}
	for tries := 0; ; tries++ {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if tries == 50 {
			return fmt.Errorf("remove a control group: %w", err)
		}
		time.Sleep(10 * time.Millisecond) // a process that has just ended is still in it
	}
}

// slowDisk delays the system calls by which one process reads, writes and flushes its files. The kernel stops them
// at a filter (seccomp) that the process inherits, and notifies this process. Only calls with an offset are
// delayed, as databases make them; logs are written without.
type slowDisk struct {
	speed atomic.Pointer[DiskSpeed]
	fd    int
	done  chan struct{} // closed when no process has the filter any more
}

func newSlowDisk(speed DiskSpeed) *slowDisk {
	d := &slowDisk{done: make(chan struct{})}
	d.speed.Store(&speed)
	return d
}

// close waits until no call is delayed any more; all that had the filter have ended, or never began.
func (d *slowDisk) close() {
	if d.fd != 0 {
		<-d.done
	}
}

// confine puts the filter on the calling thread, which must be locked to its goroutine and end with it, and on all
// that it starts. It serves their calls until the last has ended.
func (d *slowDisk) confine() error {
	filter, err := diskFilter()
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("%w: %w", ErrNoSlowDisk, err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("%w: %w", ErrNoSlowDisk, errno)
	}
	d.fd = int(fd)
	go d.serve()
	return nil
}

func onFirstThread() bool { return unix.Gettid() == unix.Getpid() }

// delayed are the calls that are delayed.
func delayed() []uint32 {
	return []uint32{unix.SYS_PREAD64, unix.SYS_PREADV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_FSYNC,
		unix.SYS_FDATASYNC}
}

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
	all := []unix.SockFilter{load(atArch), {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: arch, Jt: 1},
		end(unix.SECCOMP_RET_ALLOW), load(atNumber)}
	for _, nr := range delayed() {
		all = append(all, skip(nr), end(unix.SECCOMP_RET_USER_NOTIF))
	}
	return append(all, end(unix.SECCOMP_RET_ALLOW)), nil
}

// notification and response are the kernel's struct seccomp_notif and seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	at         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// delayedCall is a call that waits for its time.
type delayedCall struct {
	id  uint64
	due time.Time
}

// serve takes calls and continues them when due, on a thread of its own: the kernel's clock is finer than Go's
// timers. Each calling thread has at most one call here.
func (d *slowDisk) serve() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(d.done)
	defer unix.Close(d.fd)
	var waiting []delayedCall // in their order, also where the speed has changed
	var turn time.Time        // of the next call
	files := map[uint64]stretch{}
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
				if turns := c.turns(files); turns > 0 {
					waiting = append(waiting, delayedCall{c.id, d.due(&turn, turns)})
				} else {
					d.goOn(c.id)
				}
			}
		case fds[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0:
			return
		}
		for now := time.Now(); len(waiting) > 0 && !waiting[0].due.After(now); waiting = waiting[1:] {
			d.goOn(waiting[0].id)
		}
	}
}

// stretch is what was read or written of a file in a row: where it ends, and how much is left of its last turn.
type stretch struct{ end, left uint64 }

// turns is how many turns a call takes, 0 where it goes on with the last one of its file. A flush ends that.
func (c notification) turns(files map[uint64]stretch) int {
	const most = 256 << 10
	file, bytes, at := c.args[0], c.args[2], c.args[3]
	if c.number != unix.SYS_PREAD64 && c.number != unix.SYS_PWRITE64 {
		delete(files, file)
		return 1
	}
	was := files[file]
	if was.end != at || bytes == 0 {
		was.left = 0
	}
	if bytes <= was.left {
		files[file] = stretch{at + bytes, was.left - bytes}
		return 0
	}
	turns := max((bytes-was.left+most-1)/most, 1)
	files[file] = stretch{at + bytes, was.left + turns*most - bytes}
	return int(turns)
}

// due is when a call that has just come is to go on; turn is moved on by its turns.
func (d *slowDisk) due(turn *time.Time, turns int) time.Time {
	speed := d.speed.Load()
	mine := time.Now()
	if turn.After(mine) {
		mine = *turn
	}
	*turn = mine
	if speed.PerSecond > 0 {
		*turn = mine.Add(time.Duration(turns) * time.Second / time.Duration(speed.PerSecond))
	}
	return mine.Add(speed.Latency)
}

// take takes the next call; false when its thread has ended meanwhile.
func (d *slowDisk) take() (notification, bool) {
	var c notification
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&c)))
	return c, errno == 0
}

// goOn has the kernel do a call. That its thread has ended does not matter.
func (d *slowDisk) goOn(id uint64) {
	r := response{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
}
