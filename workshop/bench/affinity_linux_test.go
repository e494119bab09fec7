package bench

import (
	"os/exec"
	"testing"

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
