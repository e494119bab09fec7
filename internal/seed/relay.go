package seed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// relay hands on the files of a pull to the next puller while they arrive. A round of it is one of the pull, with
// the same manifest and the same frozen state: a puller downstream does what the pull does, a little later. A nil
// relay does nothing. It is safe for concurrent use.
type relay struct {
	dbpath string

	mu      sync.Mutex
	round   *Manifest       // nil between rounds
	ranges  map[string]bits // by path: what has arrived
	final   *Final          // once the copy is complete
	changed chan struct{}   // closed and replaced when one of these changes
}

// bits are the ranges of a file.
type bits []bool

func newRelay(dbpath string) *relay { return &relay{dbpath: dbpath, changed: make(chan struct{})} }

func (r *relay) set(f func()) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *relay) begin(m *Manifest) {
	r.set(func() {
		own := *m
		own.Round = rand.Text()
		r.round, r.ranges, r.final = &own, make(map[string]bits, len(m.Files)), nil
		for _, f := range m.Files {
			r.ranges[f.Path] = make(bits, max(m.BlockSize.blocks(f.Size)+m.BlockSize.perRange()-1, 1)/m.BlockSize.perRange()+1)
		}
	})
}

func (r *relay) arrived(path string, index int64) { r.set(func() { r.ranges[path][index] = true }) }

func (r *relay) complete(final *Final) { r.set(func() { r.final = final }) }

// end ends a round that failed. Pullers join the next one.
func (r *relay) end(err error) {
	if err != nil {
		r.set(func() { r.round, r.ranges = nil, nil })
	}
}

// until waits for a condition, which is called with r.mu locked. It returns errNotYet after a limit.
func (r *relay) until(ctx context.Context, limit time.Duration, met func() (bool, error)) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		r.mu.Lock()
		changed := r.changed
		ok, err := met()
		r.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-late.C:
			return errNotYet
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// in is called with r.mu locked.
func (r *relay) in(round string) error {
	if r.round == nil || r.round.Round != round {
		return errNoRound
	}
	return nil
}

// Join implements served.
func (r *relay) Join(ctx context.Context) (m *Manifest, err error) {
	err = r.until(ctx, turnLimit, func() (bool, error) {
		if r.round == nil {
			return false, nil
		}
		own := *r.round
		own.Puller, m = rand.Text(), &own
		return true, nil
	})
	return m, err
}

// readable implements served: all ranges of the request have arrived.
func (r *relay) readable(ctx context.Context, q ReadRequest, limit time.Duration) error {
	return r.until(ctx, limit, func() (bool, error) {
		if err := r.in(q.Round); err != nil || r.final != nil {
			return err == nil, err
		}
		per := r.round.BlockSize.perRange()
		if q.First < 0 || len(q.Have) == 0 || int64(len(q.Have)) > per {
			return false, errNoBlocks(q)
		}
		have := r.ranges[q.Path]
		for at := q.First / per; at <= (q.First+int64(len(q.Have))-1)/per; at++ {
			if at >= int64(len(have)) {
				return false, errNoBlocks(q)
			}
			if !have[at] {
				return false, nil
			}
		}
		return true, nil
	})
}

func errNoBlocks(q ReadRequest) error {
	return fmt.Errorf("seed: no such blocks: %s from %d", q.Path, q.First)
}

// Read implements served. What a later pass changes has other checksums in the frozen state.
func (r *relay) Read(ctx context.Context, q ReadRequest, fn func(Block) error) error {
	r.mu.Lock()
	err := r.in(q.Round)
	known, size := false, int64(0)
	if err == nil { // the round may end at any time later
		known, size = r.names(q.Path), int64(r.round.BlockSize)
	}
	r.mu.Unlock()
	switch {
	case err != nil:
		return err
	case !known || q.First < 0 || len(q.Have) == 0:
		return errNoBlocks(q)
	}
	file, err := r.open(q.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	buf := make([]byte, max(chunkBytes, size))
	index := q.First
	for chunk := range slices.Chunk(q.Have, int(max(chunkBytes/size, 1))) {
		n, err := readAt(file, index*size, buf[:int64(len(chunk))*size])
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		for data := buf[:n]; len(chunk) > 0; chunk = chunk[1:] {
			if len(data) == 0 {
				return nil // the file ends here
			}
			b := Block{Index: index, Data: data[:min(size, int64(len(data)))]}
			data, index = data[len(b.Data):], index+1
			if b.Sum = sumOf(b.Data); b.Sum == chunk[0] {
				b.Same, b.Data = true, nil
			}
			if err := fn(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// names reports a file of the round; nothing else is ever opened. It is called with r.mu locked.
func (r *relay) names(path string) bool {
	if _, ok := r.ranges[path]; ok {
		return true
	}
	return r.final != nil && slices.ContainsFunc(r.final.Files, func(f FinalFile) bool { return f.Path == path })
}

func (r *relay) open(path string) (*os.File, error) {
	root, err := os.OpenRoot(r.dbpath)
	if err != nil {
		return nil, fmt.Errorf("seed: cannot open the copy: %w", err)
	}
	defer root.Close()
	if path == storageFile { // under this name as soon as the copy is complete
		if f, err := root.Open(storageTemp); !errors.Is(err, fs.ErrNotExist) {
			return f, mongo.Wrap(err, "seed: cannot open %s", storageTemp)
		}
	}
	f, err := root.Open(path)
	if err != nil {
		return nil, fmt.Errorf("seed: cannot open %s: %w", path, err)
	}
	return f, nil
}

// freezeWithin implements served: the copy is complete.
func (r *relay) freezeWithin(ctx context.Context, round, _ string, limit time.Duration) (final *Final, err error) {
	err = r.until(ctx, limit, func() (bool, error) {
		final = r.final
		return final != nil, r.in(round)
	})
	return final, err
}

// stay implements served.
func (r *relay) stay(ctx context.Context, round, _ string, limit time.Duration) error {
	r.mu.Lock()
	err := r.in(round)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-time.After(limit):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave implements served.
func (r *relay) Leave(context.Context, string, string) error { return nil }
