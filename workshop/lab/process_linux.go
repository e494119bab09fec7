package lab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// childAttr gives a child its own process group, for Ctrl-C. A child that is not detached dies with its starter.
func childAttr(detached bool) *syscall.SysProcAttr {
	if detached {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the name in parentheses and may hold anything.
	_, rest, ok := strings.Cut(string(data[bytes.LastIndexByte(data, ')')+1:]), " ")
	fields := strings.Fields(rest)
	const started = 22 - 3 // field 22, and rest begins with field 3
	if !ok || len(fields) <= started {
		return 0, fmt.Errorf("read /proc/%d/stat: unknown form", pid)
	}
	return strconv.ParseUint(fields[started], 10, 64)
}

// hasArgument reports whether a process was started with an argument; false for a zombie.
func hasArgument(pid int, arg string) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && slices.Contains(strings.Split(string(data), "\x00"), arg)
}

// signal signals exactly this process: the handle is opened before the check of its identity.
func (id Identity) signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(id.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lab: open process %d: %w", id.Pid, err)
	}
	defer unix.Close(fd)
	if !id.Running() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("lab: signal process %d: %w", id.Pid, err)
	}
	return nil
}

// exited reports whether the process has no thread left, a zombie included (pidfd_open(2): readable).
func (id Identity) exited() bool {
	fd, err := unix.PidfdOpen(id.Pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	if started, err := startTime(id.Pid); err != nil || started != id.Started {
		return true // the number is another process's by now
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n == 1
}

// connectionOwner returns the index of the process that made a connection to us, or client. The kernel's table of
// connections has the inode of the other end, and /proc who has it open.
func connectionOwner(conn net.Conn, pids []int) int {
	inode := inodeOf(procAddr(conn.RemoteAddr()), procAddr(conn.LocalAddr()))
	if inode == "" {
		return client
	}
	for i, pid := range pids {
		if pid != 0 && hasSocket(pid, inode) {
			return i
		}
	}
	return client
}

// procAddr writes an IPv4 address as /proc/net/tcp does, in host byte order: little endian wherever mongod runs.
func procAddr(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || tcp.IP.To4() == nil {
		return ""
	}
	ip := slices.Clone(tcp.IP.To4())
	slices.Reverse(ip)
	return fmt.Sprintf("%X:%04X", []byte(ip), tcp.Port)
}

func inodeOf(local, remote string) string {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer f.Close()
	ends := " " + local + " " + remote + " "
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.Contains(lines.Text(), ends) {
			if fields := strings.Fields(lines.Text()); len(fields) > 9 {
				return fields[9]
			}
		}
	}
	return ""
}

func hasSocket(pid int, inode string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	want := "socket:[" + inode + "]"
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		return err == nil && target == want
	})
}

// alarm also waits for less than a millisecond: the runtime wakes an idle process by whole ones.
type alarm struct{ file *os.File }

// newAlarm makes one, to be closed.
func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	return &alarm{os.NewFile(uintptr(fd), "timer")}, nil
}

func (a *alarm) wait(d time.Duration) error {
	raw, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))}
	if err := raw.Control(func(fd uintptr) { set = unix.TimerfdSettime(int(fd), 0, &spec, nil) }); err != nil {
		return err
	}
	if set != nil {
		return set
	}
	var expired [8]byte
	_, err = a.file.Read(expired[:])
	return err
}

func (a *alarm) close() { _ = a.file.Close() }
