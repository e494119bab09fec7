package bench

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// processors are the numbers of those that this process may use.
func processors() (all []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("ask for the processors: %w", err)
	}
	const most = 1024 // what the set holds
	for i := range most {
		if set.IsSet(i) {
			all = append(all, i)
		}
	}
	return all, nil
}

// bindProcess lets a process run on some processors alone; threads that it starts later inherit that.
func bindProcess(pid int, on []int) error {
	var set unix.CPUSet
	for _, i := range on {
		set.Set(i)
	}
	for range 2 { // the second time for threads that were being started
		threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
		if err != nil {
			return fmt.Errorf("list the threads of process %d: %w", pid, err)
		}
		for _, t := range threads {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("bind process %d to processors %v: %w", pid, on, err)
			}
		}
	}
	return nil
}
