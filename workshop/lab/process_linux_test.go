package lab

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/test/kit"
)

// What millrace was told in secret is none of a mongod's business.
func TestServersGetNoSecrets(t *testing.T) {
	t.Setenv("MILLRACE_TARGET", "mongodb://u:password@h")
	p, err := startMongod(launch{path: "/bin/sleep", args: []string{"60"}, env: []string{"EXTRA=1"},
		outName: filepath.Join(t.TempDir(), "out")})
	must(t, err)
	defer func() { must(t, p.kill()) }()
	of := filepath.Join("/proc", strconv.Itoa(p.pid))
	kit.Until(t, "the program runs", func() bool {
		line, err := os.ReadFile(filepath.Join(of, "cmdline"))
		return err == nil && strings.HasPrefix(string(line), "/bin/sleep")
	})
	raw, err := os.ReadFile(filepath.Join(of, "environ"))
	must(t, err)
	env := string(raw)
	if strings.Contains(env, "MILLRACE_TARGET") || !strings.Contains(env, "PATH=") || !strings.Contains(env, "EXTRA=1") {
		t.Errorf("MILLRACE_TARGET: %v, PATH: %v, its own: %v; want false, true, true",
			strings.Contains(env, "MILLRACE_TARGET"), strings.Contains(env, "PATH="), strings.Contains(env, "EXTRA=1"))
	}
}
