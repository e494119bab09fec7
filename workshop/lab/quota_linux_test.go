package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

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
	release, err := LimitProcess(pid, 0.15)
	if errors.Is(err, ErrNoQuota) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	before, began := usedBy(t, pid), time.Now()
	time.Sleep(500 * time.Millisecond)
	// A busy machine gives it less.
	if used, most := usedBy(t, pid)-before, 0.3*time.Since(began).Seconds(); used > most {
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
	for processors, want := range map[float64][2]string{0.3: {"1000", "3334"}, 0.01: {"1000", "100000"},
		0.7: {"1000", "1429"}, 1: {"1000", "1000"}, 1.5: {"1500", "1000"}} {
		if quota, period := quotaOf(processors); quota != want[0] || period != want[1] {
			t.Errorf("%v: %s in %s", processors, quota, period)
		}
	}
}

// usedBy is the processor time of a process in seconds.
func usedBy(t *testing.T, pid int) float64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var ns float64
	if _, err := fmt.Sscan(string(raw), &ns); err != nil {
		t.Fatal(err)
	}
	return ns / 1e9
}
