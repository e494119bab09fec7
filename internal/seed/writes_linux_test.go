package seed

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/test/kit"
)

// stalled is memory whose second page is not there until it is given: a write of it
// waits inside the kernel, where it has set the file's times already.
type stalled struct {
	t    *testing.T
	fd   int
	mem  []byte
	once sync.Once
}

const page = 4096

func newStalled(t *testing.T) *stalled {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skip("no write can be stalled here (userfaultfd):", errno)
	}
	s := &stalled{t: t, fd: int(fd)}
	t.Cleanup(func() { unix.Close(s.fd) })
	api := struct{ api, features, ioctls uint64 }{api: 0xaa}
	s.ioctl(0xc018aa3f, unsafe.Pointer(&api))
	var err error
	s.mem, err = unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Munmap(s.mem)) })
	copy(s.mem, bytes.Repeat([]byte("n"), page))
	const missing = 1
	register := struct{ start, length, mode, ioctls uint64 }{uint64(uintptr(unsafe.Pointer(&s.mem[page]))), page, missing,
		0}
	s.ioctl(0xc020aa00, unsafe.Pointer(&register))
	return s
}

func (s *stalled) ioctl(request uintptr, arg unsafe.Pointer) {
	s.t.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), request, uintptr(arg)); errno != 0 {
		s.t.Fatal(errno)
	}
}

// give lets the write go on.
func (s *stalled) give() {
	s.once.Do(func() {
		text := bytes.Repeat([]byte("N"), page)
		c := struct {
			dst, src, length, mode uint64
			copied                 int64
		}{dst: uint64(uintptr(unsafe.Pointer(&s.mem[page]))), src: uint64(uintptr(unsafe.Pointer(&text[0]))), length: page}
		s.ioctl(0xc028aa03, unsafe.Pointer(&c))
	})
}

// write writes to a file at an offset, in the background; it returns when the write
// is stalled and the file's times are older than a stamp has to be.
func (s *stalled) write(name string, at int64) (done <-chan struct{}) {
	s.t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	must(s.t, err)
	before, err := f.Stat()
	must(s.t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer f.Close()
		if _, err := f.WriteAt(s.mem, at); err != nil {
			s.t.Error(err)
		}
	}()
	kit.Until(s.t, "the write is under way, and its time is believed", func() bool {
		info, err := f.Stat()
		must(s.t, err)
		return !info.ModTime().Equal(before.ModTime()) && time.Since(info.ModTime()) > settle+10*time.Millisecond
	})
	return ended
}

// A write that stalls between the times that it sets and the bytes that it puts in
// place must not leave its block out of the copy: whether it is under way when the
// round begins, when the files are caught up with, or under the lock.
func TestStalledWrites(t *testing.T) {
	for _, when := range []string{"when the round begins", "before the lock", "under the lock"} {
		t.Run(when, func(t *testing.T) {
			dir := fakeMember(t)
			name := filepath.Join(dir, "index-2.wt")
			at := 2*int64(smallestBlock) - page // into two blocks
			_, err := os.Stat(name)
			must(t, err)
			time.Sleep(2 * settle) // the files of before are believed
			s := newStalled(t)
			var done <-chan struct{}
			begin := func() {
				if done == nil {
					done = s.write(name, at)
					// Who waits for the write waits that long; who does not
					// finds it where it would be too late.
					time.AfterFunc(time.Second, s.give)
				}
			}
			end := func() {
				if done != nil {
					s.give()
					<-done
				}
			}
			freezer := &releasingFreezer{released: end}
			freezer.settle = func() {}
			switch when {
			case "when the round begins":
				begin()
				freezer.settle = end
			case "before the lock":
				freezer.settle = begin
				freezer.change = end
			case "under the lock":
				freezer.change = begin
			}
			a := fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: freezer})
			to := filepath.Join(t.TempDir(), "to")
			_, err = Pull(t.Context(), a, PullOptions{DBPath: to, NoClone: true})
			must(t, err)
			got := content(t, to, "index-2.wt")[at:][:2*page]
			if want := append(bytes.Repeat([]byte("n"), page), bytes.Repeat([]byte("N"), page)...); !bytes.Equal(got, want) {
				t.Errorf("the copy holds %q and %q", got[0], got[page])
			}
			sameFiles(t, dir, to)
		})
	}
}
