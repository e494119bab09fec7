package seed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// dataDir is a member's data directory. What is behind a link in it belongs to it,
// as it does for the server. Names in it come from its own list only.
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
		return nil, mongo.WithHint(fmt.Errorf("seed: open the source's data directory: %w", err), "name the mongod's dbPath, and run as a user that may read it")
	}
	d := &dataDir{path: real}
	raw, err := d.ReadFile(storageFile)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("seed: %s is no data directory: %w", dir, err), "name the dbPath of a mongod with the WiredTiger engine")
	}
	if string(raw) == poisonText {
		return nil, mongo.WithHint(fmt.Errorf("seed: %s is itself a copy that was not completed", dir), "complete it, or copy another member")
	}
	if doc := bson.Raw(raw); doc.Validate() == nil {
		d.storage.DirectoryPerDB, _ = doc.Lookup("storage", "options", "directoryPerDB").BooleanOK()
		d.storage.DirectoryForIndexes, _ = doc.Lookup("storage", "options", "directoryForIndexes").BooleanOK()
	}
	return d, nil
}

// directory is a data directory, of either side.
type directory interface {
	Name() string
	OpenFile(name string, flags int, mode fs.FileMode) (*os.File, error)
	ReadFile(name string) ([]byte, error)
}

// Name is the directory's path.
func (d *dataDir) Name() string { return d.path }

func (d *dataDir) at(name string) string { return filepath.Join(d.path, filepath.FromSlash(name)) }

// Open opens a file to be read.
func (d *dataDir) Open(name string) (*os.File, error) { return d.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile opens a regular file. Opening anything else in its place does not wait.
func (d *dataDir) OpenFile(name string, flags int, mode fs.FileMode) (*os.File, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := os.OpenFile(d.at(name), flags|openAtOnce, mode)
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

// Stat is about what a link leads to.
func (d *dataDir) Stat(name string) (fs.FileInfo, error) { return os.Stat(d.at(name)) }

// ReadFile reads a small file.
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

// inventory is what a data directory holds.
type inventory struct {
	files  []File
	stamps map[string]stamp
	// foreign are some files that are left out although it is not known that the
	// server needs nothing of them, of so many.
	foreign   []string
	foreigner int
}

// foreignNamed is how many of them are named.
const foreignNamed = 5

// maxDepth bounds directories in directories; a server makes two.
const maxDepth = 8

// list lists the files that a copy needs. It is an error if there is anything that
// cannot be followed to a file: nobody knows what would be left out.
func (d *dataDir) list() (*inventory, error) {
	w := &walk{dir: d, out: &inventory{stamps: map[string]stamp{}}, settles: map[uint64]bool{}}
	info, err := d.Stat(".")
	if err == nil {
		w.owner, _ = d.Stat(storageFile)
		err = w.directory(".", []fs.FileInfo{info}, false)
	}
	if err != nil {
		return nil, fmt.Errorf("seed: list %s: %w", d.path, err)
	}
	return w.out, nil
}

// walk is one look at all of a data directory.
type walk struct {
	dir     *dataDir
	out     *inventory
	owner   fs.FileInfo     // of storageFile
	settles map[uint64]bool // by device: settlesWrites
}

// directory lists a directory, which is the last of above; linked reports that a link
// led to it.
func (w *walk) directory(name string, above []fs.FileInfo, linked bool) error {
	entries, err := os.ReadDir(w.dir.at(name))
	if errors.Is(err, fs.ErrNotExist) && name != "." {
		return nil // it went between two looks
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := path.Join(name, e.Name())
		if !e.IsDir() && w.dir.storage.kindOf(p) == useless || !w.dir.storage.entered(p) && (e.IsDir() || neverTables(e.Name())) {
			continue
		}
		if err := w.entry(p, above, linked || e.Type()&fs.ModeSymlink != 0); err != nil {
			return err
		}
	}
	return nil
}

// entry lists what a name leads to.
func (w *walk) entry(p string, above []fs.FileInfo, linked bool) error {
	info, err := w.dir.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(w.dir.at(p)); errors.Is(err, fs.ErrNotExist) {
			return nil // it went between two looks
		}
		return unfollowed(p, "is a link that leads nowhere")
	}
	switch {
	case err != nil:
		return unfollowed(p, "cannot be followed: "+err.Error())
	case info.IsDir():
		return w.below(p, info, above, linked)
	case !info.Mode().IsRegular():
		return unfollowed(p, "is no file and no directory ("+info.Mode().Type().String()+")")
	}
	switch w.dir.storage.kindOf(p) {
	case useless:
		return nil
	case strange:
		return mongo.WithHint(fmt.Errorf("%s is a file of the engine that millrace does not know", p), "let us know; copy by other means, or remove it if nothing needs it")
	case foreign:
		if w.out.foreigner++; len(w.out.foreign) < foreignNamed {
			w.out.foreign = append(w.out.foreign, p)
		}
		return nil
	}
	if linked && w.owner != nil && !sameOwner(info, w.owner) {
		return unfollowed(p, "is behind a link and belongs to another user than "+storageFile)
	}
	w.out.files = append(w.out.files, File{Path: p, Size: info.Size()})
	w.out.stamps[p] = w.stamp(p, info)
	return nil
}

// below lists a directory in another one.
func (w *walk) below(p string, info fs.FileInfo, above []fs.FileInfo, linked bool) error {
	if !w.dir.storage.entered(p) {
		return nil
	}
	for _, a := range above {
		if os.SameFile(a, info) {
			return unfollowed(p, "is a link that leads back to a directory above it")
		}
	}
	if len(above) > maxDepth {
		return unfollowed(p, "is too deep below the data directory")
	}
	return w.directory(p, append(above[:len(above):len(above)], info), linked)
}

// stamp is not believed where a reader may overtake a write.
func (w *walk) stamp(p string, info fs.FileInfo) stamp {
	s := stampOf(info, time.Now())
	settles, known := w.settles[s.device]
	if !known {
		settles = settlesWrites(w.dir.at(p))
		w.settles[s.device] = settles
	}
	if !settles {
		s.taken = time.Time{}
	}
	return s
}

// unfollowed refuses a source of which a part would be left out.
func unfollowed(p, why string) error {
	return mongo.WithHint(fmt.Errorf("%s %s", p, why), "remove it from the data directory, or make it a file, a directory, or a link to one of the same user")
}
