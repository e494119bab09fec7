package service

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/workshop/lab"
)

// as is a copy of the program that is of another version by what it was built from: the
// number in its place is as long, and none that a release ever has. Its code is the same.
func as(t *testing.T, bin string, number byte) (path, version string) {
	t.Helper()
	raw, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	built := regexp.MustCompile(`(?m)^mod\tgithub\.com/millrace/millrace\t([^\t\n]+)`)
	found := built.FindSubmatchIndex(raw)
	if found == nil {
		t.Fatalf("%s does not say of what version it is", bin)
	}
	was := raw[found[2]:found[3]]
	version = "v9." + strings.Repeat(string(number), len(was)-len("v9..0")) + ".0"
	next := bytes.ReplaceAll(raw, append([]byte("mod\tgithub.com/millrace/millrace\t"), was...),
		[]byte("mod\tgithub.com/millrace/millrace\t"+version))
	path = filepath.Join(t.TempDir(), "millrace")
	if err := os.WriteFile(path, next, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return path, version
}

// TestUpgrade is what docs/guides/upgrade.md has an operator do: workers one by one, each drained
// before it ends, then serve, while two jobs run. Jobs have one owner each time, of either
// version, and the targets are the same in the end.
func TestUpgrade(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := prepareBed(t, nil)
	b.listen = fmt.Sprintf("127.0.0.1:%d", lab.PortForTest(t))
	before, old := as(t, b.bin, '1')
	after, next := as(t, b.bin, '2')
	b.bin = before
	churn, stop := b.twoJobs()
	for i, name := range []string{"w1", "w2"} {
		b.ofVersion(name, old)
		b.command("workers", "drain", "--worker", name, "--wait")
		for _, one := range bothJobs() {
			b.until(one+" on the other worker", func() bool {
				j := b.desk.View.Job(one)
				return j != nil && j.Lease != nil &&
					j.Lease.Worker != name
			})
		}
		b.owned()
		if b.workers[name].Interrupt(); b.workers[name].ExitCode() != 0 {
			t.Errorf("worker %s ended with %d", name, b.workers[name].ExitCode())
		}
		b.bin = after
		b.startWorker(name)
		b.ofVersion(name, next)
		b.owned()
		if i == 0 {
			b.catchUp(churn)
		}
	}
	if b.serve.Interrupt(); b.serve.ExitCode() != 0 {
		t.Errorf("serve ended with %d", b.serve.ExitCode())
	}
	b.startServe()
	b.until("serve", func() bool { code, _ := b.ready(); return code == 200 })
	if said := b.command("workers", "list"); strings.Contains(said, old) || strings.Count(said, next) != 2 {
		t.Errorf("workers after the upgrade:\n%s", said)
	}
	b.owned()
	b.phase(false, job.PhaseFollowing)
	churn.Stop()
	stop()
	b.finishBoth()
	t.Logf("%d operations written meanwhile", churn.Operations())
	b.endAll()
}

// ofVersion waits until a worker says that it is of a version, and takes jobs.
func (b *bed) ofVersion(name, version string) {
	b.Helper()
	b.until(name+" of version "+version, func() bool {
		for _, w := range b.desk.View.Workers() {
			if w.Name == name {
				return w.Version == version && !w.Draining
			}
		}
		return false
	})
}

// command runs one of those that ask the service, and returns what it printed.
func (b *bed) command(args ...string) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 4*time.Minute)
	defer cancel()
	token, err := os.ReadFile(filepath.Join(b.dir, "token"))
	if err != nil {
		b.Fatal(err)
	}
	cmd := spawn.CommandContext(ctx, b.bin, append(args, "--server", b.listen)...)
	cmd.Env = append(cmd.Environ(), "MILLRACE_TOKEN="+strings.TrimSpace(string(token)))
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("millrace %v: %v\n%s", args, err, out)
	}
	return string(out)
}
