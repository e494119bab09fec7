package seed

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestKilledBesideItsPrivateMongod: a seed that makes a new set is killed while its private
// mongod runs on the copy, alone or with the guardian of that. The mongod ends by itself,
// and the same command completes the copy.
func TestKilledBesideItsPrivateMongod(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	bin := test.BuildMillrace(t)
	src := lab.ForTest(t, lab.Options{})
	c := kit.Client(t, src.URI())
	_, err := c.Database("private").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	must(t, err)
	must(t, c.Disconnect(t.Context()))
	must(t, src.Members()[0].Stop())
	for _, both := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "clone")
		p := test.Start(t, bin, "seed", "local", "--from-dbpath", src.Members()[0].DBPath, "--to-dbpath", dir, "--as-new-set",
			"private", "--mongod", mongod(t, "6.0"))
		running := 0
		for running == 0 {
			if running = privateMongod(dir); running != 0 {
				break
			}
			select {
			case <-p.Done():
				t.Fatalf("it has ended before it had a private mongod:\n%s", p.Output())
			default:
			}
		}
		guardian := guardianOf(p.Pid())
		p.Kill()
		if both && guardian != 0 && guardian != running {
			_ = syscall.Kill(guardian, syscall.SIGKILL) // it may have ended
		}
		kit.Until(t, "the private mongod has ended", func() bool { return privateMongod(dir) == 0 })
	}
}

// privateMongod is the process id of a mongod that runs on a directory, 0 for none.
func privateMongod(dir string) int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		raw, err := os.ReadFile(name)
		words := bytes.Split(raw, []byte{0})
		if err != nil || len(words) < 3 || filepath.Base(string(words[0])) != "mongod" || string(words[1]) != "--dbpath" ||
			string(words[2]) != dir {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			return pid
		}
	}
	return 0
}
