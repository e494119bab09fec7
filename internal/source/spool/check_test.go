//go:build linux

package spool

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/workshop/lab"
)

// TestCheck: what would keep a spool from its directory is known before, and
// nothing is made there.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	if free, err := Check(filepath.Join(dir, "not", "there", "yet")); err != nil || free == 0 {
		t.Errorf("a directory to be made: %d, %v", free, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("made: %v, %v", left, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{file, filepath.Join(file, "below")} {
		if _, err := Check(at); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: %v", at, err)
		}
	}
}

func TestCheckRights(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(filepath.Join(dir, "spool")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v", err)
	}
}

func TestCheckReadOnly(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Skip("nothing can be mounted here: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	if _, err := Check(filepath.Join(dir, "spool")); !errors.Is(err, syscall.EROFS) {
		t.Errorf("%v", err)
	}
}

func TestCheckRoom(t *testing.T) {
	d, end, err := lab.NewDisk(t.TempDir(), 8)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = end() })
	if free, err := Check(d.Path()); err != nil || free == 0 || free > 8<<20 {
		t.Errorf("%d bytes free of 8 MB, %v", free, err)
	}
}
