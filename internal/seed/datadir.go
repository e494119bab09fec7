package seed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/mongo"
)

// dataDir is a member's data directory. Like the server it follows links. Names in it come from its own list only.
type dataDir struct {
	path    string // without links
	storage Storage
}

func openDataDir(dir string) (*dataDir, error) {
	real, err := filepath.Abs(dir)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err == nil {
		_, err = os.ReadDir(real)
	}
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("seed: cannot open the source's data directory: %w", err),
			"name the mongod's dbPath, and run as a user that may read it")
	}
	d := &dataDir{path: real}
	raw, err := d.ReadFile(storageFile)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("seed: %s is not a data directory: %w", dir, err),
			"name the dbPath of a mongod with the WiredTiger engine")
	}
	if string(raw) == poisonText {
		return nil, mongo.WithHint(fmt.Errorf("seed: %s is itself an incomplete copy", dir),
			"complete it, or copy another member")
	}
	if doc := bson.Raw(raw); doc.Validate() == nil {
		d.storage.DirectoryPerDB, _ = doc.Lookup("storage", "options", "directoryPerDB").BooleanOK()
		d.storage.DirectoryForIndexes, _ = doc.Lookup("storage", "options", "directoryForIndexes").BooleanOK()
	}
	return d, nil
}

// directory is a dataDir or an os.Root.
type directory interface {
	Name() string
	OpenFile(name string, flags int, mode fs.FileMode) (*os.File, error)
	ReadFile(name string) ([]byte, error)
}

func (d *dataDir) Name() string { return d.path }

func (d *dataDir) at(name string) string { return filepath.Join(d.path, filepath.FromSlash(name)) }

func (d *dataDir) Open(name string) (*os.File, error) { return d.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile opens a regular file. Anything else is an error, and a FIFO does not block.
func (d *dataDir) OpenFile(name string, flags int, mode fs.FileMode) (*os.File, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := os.OpenFile(d.at(name), flags|unix.O_NONBLOCK, mode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: f.Name(), Err: errors.New("no regular file")}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (d *dataDir) Stat(name string) (fs.FileInfo, error) { return os.Stat(d.at(name)) }

// ReadFile reads up to 1 MiB.
func (d *dataDir) ReadFile(name string) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	n, err := readAt(f, 0, b)
	return b[:n], err
}

type inventory struct {
	files   []File
	stamps  map[string]stamp
	foreign []string // not known as the server's, and not copied
}

const maxDepth = 8 // of directories; a server makes two levels

// list lists the files that a copy needs. A link that leads nowhere is an error: the copy would lack a file.
func (d *dataDir) list() (*inventory, error) {
	w := &walk{dir: d, out: &inventory{stamps: map[string]stamp{}}, settles: map[uint64]bool{}}
	info, err := d.Stat(".")
	if err == nil {
		w.owner, _ = d.Stat(storageFile)
		err = w.directory(".", []fs.FileInfo{info}, false)
	}
	if err != nil {
		return nil, fmt.Errorf("seed: cannot list %s: %w", d.path, err)
	}
	return w.out, nil
}

type walk struct {
	dir     *dataDir
	out     *inventory
	owner   fs.FileInfo     // of storageFile
	settles map[uint64]bool // by device: settlesWrites
}

// directory lists a directory, the last of above. linked reports a link on the way to it.
func (w *walk) directory(name string, above []fs.FileInfo, linked bool) error {
	entries, err := os.ReadDir(w.dir.at(name))
	if errors.Is(err, fs.ErrNotExist) && name != "." {
		return nil // it was removed meanwhile
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := path.Join(name, e.Name())
		if !e.IsDir() && w.dir.storage.kindOf(p) == useless || !w.dir.storage.entered(p) &&
			(e.IsDir() || neverTables(e.Name())) {
			continue
		}
		if err := w.entry(p, above, linked || e.Type()&fs.ModeSymlink != 0); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) entry(p string, above []fs.FileInfo, linked bool) error {
	info, err := w.dir.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(w.dir.at(p)); errors.Is(err, fs.ErrNotExist) {
			return nil // it was removed meanwhile
		}
		return unfollowed(p, "is a dangling link")
	}
	switch {
	case err != nil:
		return unfollowed(p, "cannot be followed: "+err.Error())
	case info.IsDir():
		return w.below(p, info, above, linked)
	case !info.Mode().IsRegular():
		return unfollowed(p, "is neither file nor directory ("+info.Mode().Type().String()+")")
	}
	switch w.dir.storage.kindOf(p) {
	case useless:
		return nil
	case strange:
		return mongo.WithHint(fmt.Errorf("%s is a file of the engine that millrace does not know", p),
			"report it; copy by other means, or remove the file if nothing needs it")
	case foreign:
		w.out.foreign = append(w.out.foreign, p)
		return nil
	}
	if linked && w.owner != nil && ownerOf(info) != ownerOf(w.owner) {
		return unfollowed(p, "is behind a link and belongs to another user than "+storageFile)
	}
	w.out.files = append(w.out.files, File{Path: p, Size: info.Size()})
	w.out.stamps[p] = w.stamp(p, info)
	return nil
}

func (w *walk) below(p string, info fs.FileInfo, above []fs.FileInfo, linked bool) error {
	if !w.dir.storage.entered(p) {
		return nil
	}
	if slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, info) }) {
		return unfollowed(p, "is a link that leads back to a directory above it")
	}
	if len(above) > maxDepth {
		return unfollowed(p, "is too deep below the data directory")
	}
	return w.directory(p, append(above[:len(above):len(above)], info), linked)
}

// stamp returns a stamp that counts only where a read waits for earlier writes.
func (w *walk) stamp(p string, info fs.FileInfo) (s stamp) {
	now := time.Now()
	ctime, inode, device, ok := identity(info)
	settles, known := w.settles[device]
	if !known {
		settles = settlesWrites(w.dir.at(p))
		w.settles[device] = settles
	}
	s = stamp{size: info.Size(), mtime: info.ModTime().UnixNano(), ctime: ctime, inode: inode, device: device}
	if ok && settles {
		s.taken = now
	}
	return s
}

func unfollowed(p, why string) error {
	return mongo.WithHint(fmt.Errorf("%s %s", p, why),
		"remove it from the data directory, or make it a file, a directory, or a link to one of the same user")
}

// storageFile has the options of the data directory; a mongod reads it first.
const storageFile = "storage.bson"

type kind int

const (
	needed  kind = iota // part of the copy
	useless             // the server does not need it, or makes it anew
	foreign             // not known as the server's: the plan names it
	strange             // an unknown file of the engine: nothing is copied
)

// kindOf returns the kind of a file by its name and the directory's options. With directoryPerDB, journal
// also holds the tables of a database of that name.
func (s Storage) kindOf(p string) kind {
	dir, name := path.Split(p)
	dir = strings.TrimSuffix(dir, "/")
	switch {
	case strings.HasSuffix(name, ".wt") && s.holdsTables(dir):
		return needed
	case dir == "":
		return kindAtTop(name)
	case dir == "journal" && inJournal(p):
		return needed
	case dir == "journal" && strings.HasPrefix(name, "WiredTigerPreplog."),
		dir == "journal" && strings.HasPrefix(name, "WiredTigerTmplog."):
		return useless // prepared in advance, empty
	case throwaway(strings.Split(dir, "/")[0]):
		return useless
	}
	return foreign
}

func kindAtTop(name string) kind {
	switch name {
	case storageFile, "WiredTiger", "WiredTiger.turtle", "WiredTiger.backup", "WiredTiger.basecfg":
		return needed
	case "mongod.lock", "WiredTiger.lock", storageTemp,
		"WiredTiger.turtle.set": // becomes WiredTiger.turtle
		return useless
	}
	if strings.HasPrefix(name, "WiredTigerStat.") || strings.HasPrefix(name, "mongodb-") &&
		strings.HasSuffix(name, ".sock") {
		return useless
	}
	if strings.HasPrefix(name, "WiredTiger") {
		return strange
	}
	return foreign
}

// holdsTables reports whether the files *.wt of a directory are the engine's tables.
// A server with unknown options might keep them in any directory.
func (s Storage) holdsTables(dir string) bool {
	if dir == "" {
		return true
	}
	parts := strings.Split(dir, "/")
	if !scratchName(parts[0]) {
		return !slices.ContainsFunc(parts, neverTables)
	}
	if !s.DirectoryPerDB {
		return false
	}
	return len(parts) == 1 || s.DirectoryForIndexes && len(parts) == 2 && (parts[1] == "collection" || parts[1] == "index")
}

// entered reports a directory that may hold needed or foreign files.
func (s Storage) entered(dir string) bool {
	parts := strings.Split(dir, "/")
	switch {
	case slices.ContainsFunc(parts, neverTables):
		return false
	case parts[0] == "journal" && len(parts) == 1, !scratchName(parts[0]):
		return true
	}
	return s.holdsTables(dir)
}

// scratchName reports a directory of the server that a database may have, too.
func scratchName(top string) bool { return top == "journal" || throwaway(top) }

// throwaway reports a directory of the server that a copy needs only tables of.
func throwaway(top string) bool { return top == "_tmp" || top == "rollback" }

// neverTables reports a directory that no database has, for its name has a dot or +.
func neverTables(name string) bool {
	return slices.Contains([]string{"diagnostic.data", "lost+found", keyStore, keyDB}, name)
}

// The keys of a member that is encrypted at rest, of MongoDB Enterprise and of Percona Server.
const (
	keyStore = "key.store"
	keyDB    = "key.db"
)

// stamp shows whether a file may have changed. No program can set the change time. But two changes within one
// tick of the kernel's clock look alike, so a stamp counts only if it was taken later than settle after a change.
type stamp struct {
	size, mtime, ctime int64
	inode, device      uint64
	taken              time.Time
}

const (
	settle       = 100 * time.Millisecond // far above the tick of any kernel's clock
	settleCoarse = 3 * time.Second        // above the two seconds of file systems without fractions
)

func (s stamp) unchangedSince(earlier stamp) bool {
	if earlier.taken.IsZero() || s.size != earlier.size || s.mtime != earlier.mtime ||
		s.ctime != earlier.ctime || s.inode != earlier.inode || s.device != earlier.device {
		return false
	}
	wait := settle
	if earlier.mtime%1e9 == 0 || earlier.ctime%1e9 == 0 {
		wait = settleCoarse
	}
	newest := time.Unix(0, max(earlier.mtime, earlier.ctime))
	return earlier.taken.Sub(newest) > wait
}

// listCopy lists the files of a copy. It follows no links.
func listCopy(root *os.Root) ([]File, error) {
	var files []File
	err := fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was removed meanwhile
		}
		if d != nil && d.IsDir() && neverTables(d.Name()) {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() || checkPath(p) != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		files = append(files, File{Path: p, Size: info.Size()})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("seed: cannot list %s: %w", root.Name(), err)
	}
	return files, nil
}

// lockDirectory takes the lock of a mongod on its data directory. Closing the file releases it.
func lockDirectory(root directory, create bool) (*os.File, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	f, err := root.OpenFile("mongod.lock", flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("seed: cannot open the lock of %s: %w", root.Name(), err)
	}
	if err = tryLock(f); err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, mongo.WithHint(fmt.Errorf("seed: %s is in use by a mongod or another seed", root.Name()), "end it first")
	}
	return nil, fmt.Errorf("seed: cannot lock %s: %w", root.Name(), err)
}

func checkFree(root directory) error {
	lock, err := lockDirectory(root, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return lock.Close()
}

// tryLock locks a file until it is closed, by child processes that have it open too.
func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// ownerOf returns the id of a file's user, -1 if unknown.
func ownerOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("seed: cannot read the free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil //nolint:unconvert // of other types on other systems
}
