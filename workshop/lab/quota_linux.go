package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Where control groups are mounted on nearly every machine: all controllers of
// the second version, or that of processors of the first.
const (
	groupsTwo = "/sys/fs/cgroup"
	groupsOne = "/sys/fs/cgroup/cpu"
)

// LimitProcess lets a process use only so many processors, which may be a part
// of one. It is paused for the rest of each few milliseconds. What it returns
// takes the limit back; the process may have ended by then. Where this machine
// has no such limits the error is ErrNoQuota.
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

// quotaOf is the least time and the period in which a process may use it, in
// microseconds, that the kernel takes: neither may be below a millisecond.
func quotaOf(processors float64) (quota, period string) {
	const least = 1000
	every := max(math.Ceil(least/processors), least)
	return strconv.Itoa(int(max(math.Round(every*processors), least))), strconv.Itoa(int(every))
}

func writeGroup(dir, file, text string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644) //nolint:gosec // files of the kernel, which exist
}

// ownGroup is the directory of a control group that may have another below it
// with a limit of its own: this process's, or the one above.
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
	// Processes and groups with limits do not go into the same group, but for
	// the topmost.
	if dir != groupsTwo {
		dir = filepath.Dir(dir)
	}
	on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil || !slices.Contains(strings.Fields(string(on)), "cpu") {
		return "", false, errors.Join(fmt.Errorf("the control group %s does not limit processors: %w", dir, errors.ErrUnsupported), err)
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
