package api

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/workshop/lab"
)

// schemathesisVersion is the one that the test was written with.
const schemathesisVersion = "4.32.5"

// schemathesis is the program, in an environment of its own below the user's cache.
func schemathesis(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip("there is no cache directory: ", err)
	}
	dir := filepath.Join(cache, "millrace", "schemathesis-"+schemathesisVersion)
	program := filepath.Join(dir, "bin", "schemathesis")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed (Debian, Ubuntu: apt-get install python3-venv)")
	}
	// Its programs name the path of the environment: it is made where it stays.
	for _, line := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{filepath.Join(dir, "bin", "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet",
			"--only-binary=:all:", "schemathesis==" + schemathesisVersion},
	} {
		if out, err := spawn.CommandContext(t.Context(), line[0], line[1:]...).CombinedOutput(); err != nil {
			_ = os.RemoveAll(dir)
			t.Skipf("schemathesis cannot be had: %v: %.600s", err, out)
		}
	}
	return program
}

// TestBySchemathesis: requests that are drawn from the OpenAPI document, right and wrong
// ones, are answered as it says.
func TestBySchemathesis(t *testing.T) {
	lab.Nightly(t) // about ten seconds of processor time
	program := schemathesis(t)
	r := newRig(t)
	r.make("orders")
	file := filepath.Join(t.TempDir(), "openapi.json")
	write(t, file, string(r.api.openapi))
	cmd := spawn.CommandContext(t.Context(), program, "run", file, "--url", r.url, "--header", "Authorization: Bearer "+
		r.tokens["admin"],
		"--exclude-path", PathEvents, "--max-examples", "20", "--max-failures", "10", "--seed", "1", "--request-timeout",
		"10", "--no-shrink",
		"--phases", "examples,coverage,fuzzing",
		// Names that are none are answered like those of no job, and a body where none is
		// wanted is not read.
		"--exclude-checks", "negative_data_rejection,positive_data_acceptance")
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "passed") {
		t.Errorf("%v\n%s", err, out)
	}
}
