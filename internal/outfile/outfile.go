// Package outfile writes results to where an operator wants them. It uses
// nothing of ours and knows nothing of what it writes.
package outfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

type place struct {
	file string   // a regular file, which may not be there yet; "" for anything else
	open *os.File // the program's own standard output or error
}

// find follows path. Standard output is written as it is, also where it is a
// file: to replace or cut that would take away what was printed already.
func find(path string) (place, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return place{}, errors.New("is a symbolic link that leads to nothing")
		}
		if dir, err := os.Stat(filepath.Dir(path)); err != nil || !dir.IsDir() {
			return place{}, errors.New("its directory does not exist")
		}
		return place{file: path}, nil
	}
	if err != nil {
		return place{}, bare(err)
	}
	for _, own := range []*os.File{os.Stdout, os.Stderr} {
		if i, err := own.Stat(); err == nil && os.SameFile(i, info) {
			return place{open: own}, nil
		}
	}
	switch {
	case info.IsDir():
		return place{}, errors.New("is a directory")
	case !info.Mode().IsRegular():
		return place{}, nil
	}
	file, err := filepath.EvalSymlinks(path)
	return place{file: file}, bare(err)
}

// Check says what keeps a result from being written to path. It leaves
// everything as it is: it is for the moment before hours of work.
func Check(path string) error {
	at, err := find(path)
	switch {
	case err != nil || at.open != nil:
		return err
	case at.file == "":
		return unix.Access(path, unix.W_OK)
	}
	tmp, err := create(at.file)
	if err != nil {
		return err
	}
	return errors.Join(tmp.Close(), os.Remove(tmp.Name()))
}

// Write has a result appear whole in a file that its owner alone may read, or sends it through what is no regular file.
// Where path is a symbolic link, it writes what that leads to.
func Write(path string, write func(io.Writer) error) error {
	at, err := find(path)
	switch {
	case err != nil:
		return err
	case at.open != nil:
		return write(at.open)
	case at.file != "":
		return Replace(at.file, func(f *os.File) error { return errors.Join(write(f), f.Sync()) })
	}
	// Without O_NONBLOCK a pipe that nobody reads would be waited for without end.
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return errors.New("nobody reads the pipe")
	}
	if err != nil {
		return bare(err)
	}
	return errors.Join(write(f), f.Close())
}

// Replace has a file appear whole, or stay as it was. Its owner alone may read it.
func Replace(path string, write func(*os.File) error) error {
	tmp, err := create(path)
	if err != nil {
		return err
	}
	if err = errors.Join(write(tmp), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// create makes a file with mode 0600 beside path, which may take its place.
func create(path string) (*os.File, error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", dir, bare(err))
	}
	return f, nil
}

// bare drops the path, which whoever asks knows.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
