package bench

import (
	"errors"
	"io/fs"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process is bound with its threads, and to nothing that is not asked for.
func TestBindProcess(t *testing.T) {
	all, err := processors()
	if err != nil || len(all) == 0 {
		t.Fatalf("%v %v", all, err)
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if err := bindProcess(cmd.Process.Pid, all[len(all)-1:]); err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(cmd.Process.Pid, &set); err != nil || set.Count() != 1 || !set.IsSet(all[len(all)-1]) {
		t.Errorf("%v %v", set, err)
	}
	if err := bindProcess(1<<22+1, all); err == nil {
		t.Error("a process that there is not is bound")
	}
}

// A process that would use a whole processor gets a part of one, as far as this
// machine lets control groups be made.
func TestLimitProcess(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	release, err := limitProcess(pid, 0.15)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	before, began := processCPU([]int{pid}), time.Now()
	for time.Since(began) < 500*time.Millisecond {
		tick(t.Context(), 50*time.Millisecond)
	}
	// A busy machine gives it less.
	if used, most := processCPU([]int{pid})-before, 0.3*time.Since(began).Seconds(); used > most {
		t.Errorf("it has used %.3f s, its part allows about %.3f", used, most/2)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	if err := release(); err != nil { // nothing is left to take back
		t.Error(err)
	}
}

// The kernel takes no time below a millisecond.
func TestQuotaOf(t *testing.T) {
	for processors, want := range map[float64][2]string{0.3: {"1000", "3334"}, 0.01: {"1000", "100000"}, 0.7: {"1000", "1429"}, 1: {"1000", "1000"}, 1.5: {"1500", "1000"}} {
		if quota, period := quotaOf(processors); quota != want[0] || period != want[1] {
			t.Errorf("%v: %s in %s", processors, quota, period)
		}
	}
}
