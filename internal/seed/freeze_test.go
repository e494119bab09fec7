package seed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A member whose files change under the lock is locked again, a few times.
func TestFilesThatChangeUnderTheLock(t *testing.T) {
	for _, c := range []struct {
		times, locks int
		fails        bool
	}{{1, 2, false}, {2, 3, false}, {9, freezeAttempts, true}} {
		dir := fakeMember(t)
		freezer := &changingFreezer{}
		a := fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: freezer})
		n := 0
		a.compared = func() {
			if n++; n <= c.times {
				appendTo(t, dir, "WiredTiger.turtle", "a checkpoint that began before the lock")
			}
		}
		to := filepath.Join(t.TempDir(), "to")
		must(t, os.WriteFile(filepath.Join(dir, "WiredTiger.turtle"), []byte("turtle"), 0o600))
		_, err := Pull(t.Context(), a, PullOptions{DBPath: to, NoClone: true})
		if c.fails != errors.Is(err, errWritten) || freezer.n != c.locks {
			t.Errorf("changed %d times: %v after %d locks", c.times, err, freezer.n)
		}
		if err == nil {
			sameFiles(t, dir, to)
		}
	}
}

// What was put aside before the lock counts if it is the same under it; what
// changed once more is put aside anew.
func TestBlocksThatChangeTwice(t *testing.T) {
	dir := fakeMember(t)
	write := func(at int64, text string) {
		f, err := os.OpenFile(filepath.Join(dir, "index-2.wt"), os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte(text), at)
		must(t, err)
		must(t, f.Close())
	}
	freezer := &settlingFreezer{}
	freezer.settle = func() { // after the first pass
		write(3*int64(smallestBlock), "once")
		write(5*int64(smallestBlock), "the first time")
	}
	freezer.change = func() { write(5*int64(smallestBlock), "the second time") } // just before the lock
	a := fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: freezer})
	to := filepath.Join(t.TempDir(), "to")
	report, err := Pull(t.Context(), a, PullOptions{DBPath: to, NoClone: true})
	must(t, err)
	sameFiles(t, dir, to)
	if report.Lock.CaughtBytes != 2*int64(smallestBlock) || report.ChangedBytes != int64(smallestBlock) ||
		report.AgainBytes != 2*int64(smallestBlock) {
		t.Errorf("%+v", report)
	}
}

type settlingFreezer struct {
	changingFreezer
	settle func()
}

func (f *settlingFreezer) Settle(context.Context) error {
	f.settle()
	return nil
}

// TestSmallFilesTakeTheirRoom: before it is complete, a copy of many small files takes no more
// room than their sizes, which is what is looked for on the disk before it begins.
func TestSmallFilesTakeTheirRoom(t *testing.T) {
	const files, size = 50, 20 << 10
	dir, to := fakeMember(t), filepath.Join(t.TempDir(), "to")
	for i := range files {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("index-%d-7.wt", 100+i)), bytes.Repeat([]byte{byte(i + 1)}, size),
			0o600))
	}
	a := fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: &changingFreezer{}})
	looked := false
	a.compared = func() {
		looked = true
		for i := range files {
			info, err := os.Stat(filepath.Join(to, fmt.Sprintf("index-%d-7.wt", 100+i)))
			if err != nil {
				t.Error(err)
				return
			}
			if taken := info.Sys().(*syscall.Stat_t).Blocks * 512; max(info.Size(), taken) > 2*size {
				t.Errorf("%s takes %d bytes and has %d, for %d of the source", info.Name(), taken, info.Size(), size)
			}
		}
	}
	_, err := Pull(t.Context(), a, PullOptions{DBPath: to, NoClone: true})
	must(t, err)
	sameFiles(t, dir, to)
	if !looked {
		t.Error("nothing was compared")
	}
}

// What was put aside before a lock under which files changed counts for the next
// lock: a file that did not change in between is not read again.
func TestBlocksPutAsideOutliveALock(t *testing.T) {
	dir := fakeMember(t)
	write := func(text string) {
		f, err := os.OpenFile(filepath.Join(dir, "index-2.wt"), os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte(text), 3*int64(smallestBlock))
		must(t, err)
		must(t, f.Close())
	}
	freezer := &releasingFreezer{}
	freezer.settle = func() { // after the first pass
		if freezer.n == 0 {
			write("once")
			time.Sleep(2 * settle) // else its stamp is not believed
		}
	}
	freezer.released = func() {
		if freezer.n == 2 {
			write("thereafter")
		}
	}
	a := fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: freezer})
	must(t, os.WriteFile(filepath.Join(dir, "WiredTiger.turtle"), []byte("turtle"), 0o600))
	n := 0
	a.compared = func() {
		if n++; n == 1 {
			appendTo(t, dir, "WiredTiger.turtle", "a checkpoint that began before the lock")
		}
	}
	to := filepath.Join(t.TempDir(), "to")
	_, err := Pull(t.Context(), a, PullOptions{DBPath: to, NoClone: true})
	must(t, err)
	got, err := os.ReadFile(filepath.Join(to, "index-2.wt"))
	must(t, err)
	if text := string(got[3*int64(smallestBlock):][:4]); freezer.n != 2 || text != "once" {
		t.Errorf("after %d locks the copy holds %q", freezer.n, text)
	}
}

// releasingFreezer calls released when the member works again.
type releasingFreezer struct {
	settlingFreezer
	released func()
}

func (f *releasingFreezer) Freeze(ctx context.Context) (Thaw, error) {
	thaw, err := f.settlingFreezer.Freeze(ctx)
	return releasedThaw{thaw, f.released}, err
}

type releasedThaw struct {
	Thaw
	released func()
}

func (t releasedThaw) Release() error {
	err := t.Thaw.Release()
	t.released()
	return err
}

// A stamp is believed when it is old enough for its file system's clock.
func TestStampsAreBelieved(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		before   time.Duration // the last change, before the stamp was taken
		believed bool
	}{{50 * time.Millisecond, false}, {150*time.Millisecond + 1, true}, {time.Second, false}, {2 * time.Second, false},
		{4 * time.Second, true}} {
		at := now.Add(-c.before).UnixNano()
		s := stamp{size: 1, mtime: at, ctime: at, inode: 7, device: 3, taken: now}
		if got := s.unchangedSince(s); got != c.believed {
			t.Errorf("changed %s before: believed %v", c.before, got)
		}
	}
	at := now.Add(-time.Minute).UnixNano()
	s := stamp{size: 1, mtime: at, ctime: at, inode: 7, device: 3, taken: now}
	for _, other := range []stamp{{2, at, at, 7, 3, now}, {1, at + 1, at, 7, 3, now}, {1, at, at + 1, 7, 3, now},
		{1, at, at, 8, 3, now}, {1, at, at, 7, 4, now}} {
		if other.unchangedSince(s) {
			t.Errorf("%+v is taken for unchanged", other)
		}
	}
}
