// Package spool keeps an ordered run of records on local disk: a queue between a source that
// forgets and a consumer that is not ready yet. It survives a kill at any moment, is bounded in
// bytes, and detects damaged records.
//
// A spool is a directory of segments, each a file named by its number. A segment is a run of
// records. A record is a header of 32 bytes and the payload. The header has the length of the
// payload, keys of its first and last entry, and the checksum of header and payload, all
// little-endian. Bytes after the last complete record of the newest segment were torn by a crash,
// and are cut off when the spool is opened. Other damaged records are errors.
package spool

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrDamaged reports a record that was changed after it was written.
var ErrDamaged = errors.New("spool is damaged")

// ErrFull reports that a record exceeds the spool's bounds now.
var ErrFull = errors.New("spool is full")

// ErrNoSpace reports that the disk, or a quota, has no room for a record. The spool is unchanged,
// and the record may be appended later.
var ErrNoSpace = errors.New("no space left on the disk of the spool")

// Options configure a Spool.
type Options struct {
	// MaxBytes bounds the spool on disk; 0 is 1 GB. An empty spool takes any record.
	MaxBytes int64
	// SegmentBytes completes a segment, default 64 MB. Disk space is freed by segments.
	SegmentBytes int64
	// Owner names the owner of the records. Those of another are removed.
	Owner string
}

// ErrLocked reports that another process has the spool open.
var ErrLocked = errors.New("another process has the spool open")

// Spool is an open spool. One goroutine appends, others may read, trim and ask at the same time.
type Spool struct {
	dir string
	opt Options

	mu       sync.Mutex
	segments []*segment // oldest first
	bytes    int64
	unlock   func() error
	file     *os.File // of the newest segment, nil before the first append
	torn     bool     // behind the newest segment's records lies what a failed write left
}

type segment struct {
	number      uint64
	first, last uint64
	size        int64
}

const (
	suffix    = ".spool"
	ownerFile = "owner"
	lockName  = "lock"
)

// Open opens the spool in dir, creates it if necessary, and cuts off what a crash tore. It returns
// ErrLocked if another process has it open.
func Open(dir string, o Options) (_ *Spool, err error) {
	o.MaxBytes, o.SegmentBytes = cmp.Or(o.MaxBytes, 1<<30), cmp.Or(o.SegmentBytes, 64<<20)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	s := &Spool{dir: dir, opt: o}
	if s.unlock, err = lock(filepath.Join(dir, lockName)); err != nil {
		return nil, fmt.Errorf("open spool %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			_ = s.unlock()
		}
	}()
	if err := s.own(); err != nil {
		return nil, fmt.Errorf("open spool %s: %w", dir, err)
	}
	numbers, err := s.list()
	if err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	for i, n := range numbers {
		if i > 0 && n != numbers[i-1]+1 {
			return nil, fmt.Errorf("open spool %s: %w: segment %d is not there", dir, ErrDamaged, numbers[i-1]+1)
		}
		if err := s.load(n, i == len(numbers)-1); err != nil {
			return nil, fmt.Errorf("open spool %s: %w", dir, err)
		}
	}
	return s, nil
}

// Exists reports whether dir has segments, of any owner.
func Exists(dir string) bool {
	numbers, err := (&Spool{dir: dir}).list()
	return err == nil && len(numbers) > 0
}

// own removes what belongs to another owner and writes our name, complete before the first segment.
func (s *Spool) own() error {
	name := filepath.Join(s.dir, ownerFile)
	was, err := os.ReadFile(name)
	if err == nil && string(was) == s.opt.Owner {
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	numbers, err := s.list()
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if err := os.Remove(s.path(n)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(name, []byte(s.opt.Owner), 0o600); err != nil {
		return err
	}
	return syncDir(s.dir)
}

func (s *Spool) list() ([]uint64, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var out []uint64
	for _, e := range entries {
		name, ours := strings.CutSuffix(e.Name(), suffix)
		if n, err := strconv.ParseUint(name, 10, 64); ours && err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (s *Spool) load(number uint64, newest bool) error {
	f, err := os.OpenFile(s.path(number), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	g := &segment{number: number}
	for g.size < info.Size() {
		r, err := readRecord(f, g.size, info.Size())
		if errors.Is(err, errTorn) && newest {
			if err := f.Truncate(g.size); err != nil {
				return err
			}
			break
		}
		if err == nil && s.end() >= r.First && (g.size > 0 || len(s.segments) > 0) {
			err = fmt.Errorf("key %d does not grow", r.First)
		}
		if err != nil {
			return fmt.Errorf("%w: segment %d at byte %d: %w", ErrDamaged, number, g.size, err)
		}
		if g.size == 0 {
			g.first = r.First
			s.segments = append(s.segments, g)
		}
		g.last = r.Last
		g.size += r.size()
	}
	if g.size == 0 && !newest {
		return fmt.Errorf("%w: segment %d is empty", ErrDamaged, number)
	}
	if g.size == 0 { // it has no complete record
		return os.Remove(s.path(number))
	}
	s.bytes += g.size
	return nil
}

func (s *Spool) path(number uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%016d%s", number, suffix))
}

func (s *Spool) end() uint64 {
	if len(s.segments) == 0 {
		return 0
	}
	return s.segments[len(s.segments)-1].last
}

// Bounds returns the keys of the oldest and the newest entry; false for an empty spool.
func (s *Spool) Bounds() (first, last uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes == 0 {
		return 0, 0, false
	}
	return s.segments[0].first, s.end(), true
}

// Bytes returns the size of the spool on disk.
func (s *Spool) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// Room reports whether a payload of n bytes fits now.
func (s *Spool) Room(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fits(n + headerSize)
}

func (s *Spool) fits(n int64) bool { return s.bytes == 0 || s.bytes+n <= s.opt.MaxBytes }

// Append adds a record, whose keys must follow all others. Sync makes it durable. After an error
// the spool is unchanged.
func (s *Spool) Append(r Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(r.Payload) > maxPayload:
		return fmt.Errorf("spool: a record of %d bytes is larger than any reply", len(r.Payload))
	case r.Last < r.First || len(s.segments) > 0 && r.First <= s.end():
		return fmt.Errorf("spool: keys %d to %d do not follow %d", r.First, r.Last, s.end())
	case !s.fits(r.size()):
		return ErrFull
	}
	err := s.truncateTorn()
	if err == nil {
		err = s.roll(r)
	}
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	g := s.segments[len(s.segments)-1]
	if err := writeRecord(s.file, g.size, r); err != nil {
		s.torn = true
		_ = s.truncateTorn() // else before the next write
		return fmt.Errorf("spool: %w", noSpace(err))
	}
	if g.size == 0 {
		g.first = r.First
	}
	g.last = r.Last
	g.size += r.size()
	s.bytes += r.size()
	return nil
}

// truncateTorn cuts off what a failed write left, so that nothing follows a segment's last record.
func (s *Spool) truncateTorn() error {
	if !s.torn {
		return nil
	}
	if err := s.file.Truncate(s.segments[len(s.segments)-1].size); err != nil {
		return noSpace(err)
	}
	s.torn = false
	return nil
}

// noSpace adds ErrNoSpace to errors of a full disk, but not of a failed sync: earlier records may
// be lost then.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

func (s *Spool) roll(r Record) error {
	n := len(s.segments)
	if s.file != nil && (s.segments[n-1].size == 0 || s.segments[n-1].size+r.size() <= s.opt.SegmentBytes) {
		return nil
	}
	if err := s.closeFile(); err != nil {
		return err
	}
	number := uint64(1)
	if n > 0 {
		number = s.segments[n-1].number + 1
	}
	f, err := os.OpenFile(s.path(number), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return noSpace(err)
	}
	s.file = f
	s.segments = append(s.segments, &segment{number: number, first: r.First, last: s.end()})
	return syncDir(s.dir)
}

// closeFile makes the newest segment durable; the next append opens another.
func (s *Spool) closeFile() error {
	if s.file == nil {
		return nil
	}
	err := errors.Join(s.file.Sync(), s.file.Close())
	s.file = nil
	return err
}

// Sync makes what was appended durable.
func (s *Spool) Sync() error {
	s.mu.Lock()
	f := s.file
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	if err := f.Sync(); err != nil && !errors.Is(err, os.ErrClosed) { // closed ones were synced
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

// Trim removes the segments whose entries all precede key.
func (s *Spool) Trim(key uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.segments) > 1 && s.segments[0].last < key {
		if err := s.drop(); err != nil {
			return fmt.Errorf("spool: %w", err)
		}
	}
	return nil
}

func (s *Spool) drop() error {
	g := s.segments[0]
	if err := os.Remove(s.path(g.number)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s.segments = s.segments[1:]
	s.bytes -= g.size
	return nil
}

// Close closes the files and makes appended records durable.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.closeFile(), s.unlock())
}

// Remove deletes the spool's files and its directory, if that is empty. The spool must not be in
// use.
func (s *Spool) Remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.closeFile()
	for len(s.segments) > 0 && err == nil {
		err = s.drop()
	}
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	_ = os.Remove(filepath.Join(s.dir, ownerFile))
	_ = os.Remove(filepath.Join(s.dir, lockName))
	_ = os.Remove(s.dir) // somebody else's files may be in it
	return s.unlock()
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func lock(name string) (unlock func() error, err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f.Close, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	return nil, err
}

// Check reports whether a spool could be kept in dir, and the free bytes there. It writes nothing:
// for a missing directory it checks the one to create it in.
func Check(dir string) (free uint64, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return 0, fmt.Errorf("find the directory of the spool: %w", err)
	}
	at := dir
	info, err := os.Stat(at)
	for at != filepath.Dir(at) && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: %w", at, syscall.ENOTDIR)
	}
	if err != nil {
		return 0, err
	}
	if err := unix.Access(at, unix.R_OK|unix.W_OK|unix.X_OK); err != nil {
		return 0, fmt.Errorf("write to %s: %w", at, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return 0, fmt.Errorf("ask for the room on the disk of %s: %w", at, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}
