package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

// locked does something while the secondary is locked. The time counts from the
// server's word that it is locked to its word that it is not, as millrace counts.
func (w *seedWork) locked(ctx context.Context, m *meter, do func() error) error {
	node := w.source.nodes[w.from]
	if _, err := node.Command(ctx, "admin", bson.D{{Key: "fsync", Value: 1}, {Key: "lock", Value: true}}); err != nil {
		return fmt.Errorf("lock the secondary: %w", err)
	}
	began := time.Now()
	err := do()
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, e := node.Command(release, "admin", bson.D{{Key: "fsyncUnlock", Value: 1}}); e != nil {
		err = errors.Join(err, fmt.Errorf("unlock the secondary: %w", e))
	}
	m.value(valueLocked, time.Since(began).Seconds())
	return err
}

// stalls measures, while something runs, how long at most the secondary applied
// nothing: whatever the reason, and for all ways alike. The load's writes are
// 10 ms apart, and so is the least that it finds.
func (w *seedWork) stalls(run func(context.Context, *meter) error) func(context.Context, *meter) error {
	return func(ctx context.Context, m *meter) error {
		watching, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		var longest time.Duration
		wg.Go(func() {
			var last mongo.OpTime
			for since := time.Now(); tick(watching, 2*time.Millisecond); {
				p, err := w.source.nodes[w.from].Positions(watching)
				if err == nil && p.Last != last {
					if !last.IsZero() {
						longest = max(longest, time.Since(since))
					}
					last, since = p.Last, time.Now()
				}
			}
		})
		err := run(ctx, m)
		stop()
		wg.Wait()
		m.value(valueStall, longest.Seconds())
		return err
	}
}

const (
	copyRange   = 8 << 20
	copyBlock   = 1 << 20
	copyWorkers = 4
)

// copyFiles copies a data directory as it is, and returns how many bytes that
// are not zeros.
func copyFiles(ctx context.Context, from, to string) (int64, error) {
	buffers := sync.Pool{New: func() any { b := make([]byte, copyBlock); return &b }}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(copyWorkers)
	copied := make(chan int64, copyWorkers)
	total := make(chan int64, 1)
	go func() { // ends with copied
		var n int64
		for c := range copied {
			n += c
		}
		total <- n
	}()
	err := eachFile(from, func(name string, size int64) error {
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o700); err != nil {
			return err
		}
		out, err := os.Create(filepath.Join(to, name))
		if err != nil {
			return err
		}
		if err := errors.Join(out.Truncate(size), out.Close()); err != nil {
			return err
		}
		for at := int64(0); at < size && ctx.Err() == nil; at += copyRange {
			g.Go(func() error {
				buf, _ := buffers.Get().(*[]byte)
				defer buffers.Put(buf)
				n, err := copyPart(filepath.Join(from, name), filepath.Join(to, name), at, *buf)
				copied <- n
				return err
			})
		}
		return nil
	})
	err = errors.Join(err, g.Wait())
	close(copied)
	return <-total, err
}

// eachFile names the files that a copy needs.
func eachFile(dir string, do func(name string, size int64) error) error {
	return fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == "mongod.lock" || strings.HasPrefix(name, "diagnostic.data") {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return do(name, info.Size())
	})
}

func copyPart(from, to string, at int64, buf []byte) (n int64, err error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for end := at + copyRange; at < end; at += copyBlock {
		got, err := in.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
		if !isZero(buf[:got]) {
			if _, err := out.WriteAt(buf[:got], at); err != nil {
				return n, err
			}
			n += int64(got)
		}
		if got < copyBlock {
			return n, nil
		}
	}
	return n, nil
}

// isZero looks at the ends first: data differ there.
func isZero(b []byte) bool {
	if len(b) == 0 || b[0] != 0 || b[len(b)-1] != 0 {
		return len(b) == 0
	}
	return bytes.Count(b, []byte{0}) == len(b)
}

// syncFiles makes a copy durable.
func syncFiles(dir string) error {
	var g errgroup.Group
	g.SetLimit(copyWorkers)
	err := eachFile(dir, func(name string, _ int64) error {
		g.Go(func() error {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			return errors.Join(f.Sync(), f.Close())
		})
		return nil
	})
	return errors.Join(err, g.Wait())
}
