package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/spawn"
)

// Disk is a small file system of a member's own, in memory, that can be full.
//
// It is mounted in a mount namespace that belongs to a helper process and is
// reached through that process's entry in /proc. So neither root nor a clean
// end is needed: it is gone when the helper is, and that ends with its starter.
type Disk struct {
	path string // as this and other processes see it
	size int64

	mu    sync.Mutex // keeps the exchanges with the helper apart
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader

	end   sync.Once
	ended error
}

// diskScript mounts and then resizes to each size read.
const diskScript = `mount -t tmpfs -o size="$2",mode=700 millrace "$1" && echo done || exit 1
while read -r size; do mount -o remount,size="$size" "$1" && echo done || echo failed; done`

// newDisk mounts a file system of mb megabytes. dir is made and hidden by it.
func newDisk(dir string, mb int) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lab: make a small disk: %w", err)
	}
	d := &Disk{size: int64(mb) << 20}
	d.cmd = spawn.Command("sh", "-c", diskScript, "sh", dir, strconv.FormatInt(d.size, 10)) // ended by close
	d.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	var said strings.Builder
	d.cmd.Stderr = &said
	out, err1 := d.cmd.StdoutPipe()
	in, err2 := d.cmd.StdinPipe()
	if err := errors.Join(err1, err2, d.cmd.Start()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDisk, err)
	}
	d.in, d.lines = in, bufio.NewReader(out)
	if err := d.answer(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w: %s", ErrNoDisk, err, strings.TrimSpace(said.String())), d.close())
	}
	d.path = filepath.Join("/proc", strconv.Itoa(d.cmd.Process.Pid), "root", dir)
	return d, nil
}

// Fill leaves no room for more than what is on the disk now.
func (d *Disk) Fill(ctx context.Context) error {
	return Poll(ctx, time.Millisecond, func() (bool, error) {
		used, err := d.used()
		if err != nil {
			return false, err
		}
		return d.resize(used) == nil, nil // else more was written meanwhile
	})
}

// Free gives the disk its first size back.
func (d *Disk) Free() error { return d.resize(d.size) }

// Path is where the disk is.
func (d *Disk) Path() string { return d.path }

func (d *Disk) used() (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.path, &st); err != nil {
		return 0, fmt.Errorf("lab: ask how full %s is: %w", d.path, err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, nil
}

func (d *Disk) resize(size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := fmt.Fprintln(d.in, max(size, 4096)); err != nil {
		return fmt.Errorf("lab: resize %s: %w", d.path, err)
	}
	return d.answer()
}

// answer reads what the helper says.
func (d *Disk) answer() error {
	line, err := d.lines.ReadString('\n')
	if err != nil {
		return fmt.Errorf("lab: the helper of a small disk ended: %w", err)
	}
	if line != "done\n" {
		return fmt.Errorf("lab: resize %s: %s", d.path, strings.TrimSpace(line))
	}
	return nil
}

// close ends the helper, once; what still has a file open there keeps the rest.
func (d *Disk) close() error {
	d.end.Do(func() {
		_ = d.in.Close()
		var exit *exec.ExitError
		if err := d.cmd.Wait(); err != nil && !errors.As(err, &exit) {
			d.ended = fmt.Errorf("lab: end the helper of a small disk: %w", err)
		}
	})
	return d.ended
}

// FilesInMemory reports that the directory of temporary clusters is a file system in
// memory (magic numbers of statfs(2)).
func FilesInMemory() bool {
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	var st syscall.Statfs_t
	if err := syscall.Statfs(parent(), &st); err != nil {
		return false
	}
	kind := int64(st.Type) //nolint:unconvert // of another type on other systems
	return kind == tmpfs || kind == ramfs
}
