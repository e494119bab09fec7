package outfile

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func hello(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }

func content(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestFile: a result is for its owner alone, also where a file was open to all.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := os.WriteFile(open, []byte("what was here before"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{open, filepath.Join(dir, "new")} {
		if err := Check(path); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, hello); err != nil || content(t, path) != "hello" {
			t.Errorf("%v: %s", err, content(t, path))
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if all, _ := os.ReadDir(dir); len(all) != 2 {
		t.Errorf("something stays behind: %v", all)
	}
}

// TestSymbolicLink: the link stays, what it leads to is written.
func TestSymbolicLink(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "target")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	if err := Check(link); err == nil || !strings.Contains(err.Error(), "leads to nothing") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(elsewhere, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(link, hello); err != nil || content(t, elsewhere) != "hello" {
		t.Errorf("%v", err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
}

// TestPipe: what reads it gets the result, and the pipe stays. One that nobody
// reads is an error.
func TestPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Check(pipe); err != nil {
		t.Fatal(err)
	}
	if err := Write(pipe, hello); err == nil || !strings.Contains(err.Error(), "nobody reads") {
		t.Errorf("%v", err)
	}
	r, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := Write(pipe, hello); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDevices(t *testing.T) {
	for _, path := range []string{"/dev/null", "/dev/stdout"} {
		if err := Check(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if err := Write(path, func(w io.Writer) error { _, err := io.WriteString(w, "\n"); return err }); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if info, err := os.Stat("/dev/null"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("/dev/null is %v, %v", info.Mode(), err)
	}
}

func TestNoPlace(t *testing.T) {
	for path, want := range map[string]string{
		t.TempDir():                   "is a directory",
		t.TempDir() + "/none/report":  "does not exist",
		"/proc/self/nothing":          "make a file in /proc/self",
		"/proc/self/cmdline/no/place": "not a directory",
	} {
		for name, err := range map[string]error{"Check": Check(path), "Write": Write(path, hello)} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s of %s: %v, want %s", name, path, err, want)
			}
		}
	}
}
