package procstat

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestPeakIsNotTheParents starts a process from a large one: the kernel counts
// the parent's memory into the peak of getrusage.
func TestPeakIsNotTheParents(t *testing.T) {
	const child = "MILLRACE_TEST_PEAK"
	if os.Getenv(child) != "" {
		t.Logf("peak=%d", Read().Peak)
		return
	}
	ballast := make([]byte, 400<<20)
	for i := 0; i < len(ballast); i += 4096 {
		ballast[i] = 1
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^TestPeakIsNotTheParents$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, rest, _ := strings.Cut(string(out), "peak=")
	peak, err := strconv.Atoi(strings.Fields(rest + " ?")[0])
	if err != nil {
		t.Fatalf("the child said %q", out)
	}
	if peak <= 0 || peak > len(ballast)*3/4 {
		t.Errorf("a small process of a large parent (%d bytes, first %d) says its peak is %d", len(ballast), ballast[0], peak)
	}
}
