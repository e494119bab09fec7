package seed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// PullOptions describe the copy in the new member's directory.
type PullOptions struct {
	DBPath  string
	Workers int                   // ranges under way at once, default 4
	Check   func(*Manifest) error // refuses a source before anything is written; nil accepts all
	// Replace removes a server's files from the directory, after all checks; nil refuses a directory that has any.
	Replace func(context.Context, *os.Root) error
	NoClone bool // copies also where files could share their blocks
	Limit   *pace.Limiter
	Stats   *Stats
	Log     *slog.Logger

	relay *relay // hands the files on while they arrive; nil does not
}

// Report is what a copy did.
type Report struct {
	Way            Way       `json:"way"`
	Origin         Origin    `json:"origin"`
	Files          int       `json:"files"`
	Bytes          int64     `json:"bytes"`          // of all files
	CopiedBytes    int64     `json:"copiedBytes"`    // written in the first pass
	ClonedBytes    int64     `json:"clonedBytes"`    // shared with the source instead
	AgainBytes     int64     `json:"againBytes"`     // written again, as they were under the lock
	ChangedBytes   int64     `json:"changedBytes"`   // put aside by the agent under the lock
	PrepareSeconds float64   `json:"prepareSeconds"` // until the first byte: both sides list their files
	CopySeconds    float64   `json:"copySeconds"`
	LockSeconds    float64   `json:"lockSeconds"`
	Lock           LockTimes `json:"lock,omitzero"` // the steps of LockSeconds
	FreezeSeconds  float64   `json:"freezeSeconds"` // until the frozen state, with the lock
	FinishSeconds  float64   `json:"finishSeconds"` // changed blocks, fsync
	Resumed        bool      `json:"resumed"`
}

// Pull copies a member's files into an empty directory, or completes an interrupted
// copy. From the first byte until it returns nil, no mongod starts on the directory.
func Pull(ctx context.Context, src Source, o PullOptions) (*Report, error) {
	o.Workers, o.Log = cmp.Or(max(o.Workers, 0), 4), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Stats == nil {
		o.Stats = &Stats{}
	}
	p := &pull{o: o, src: src}
	p.buffers.New = func() any {
		b := directBuffer(stretchBytes)
		return &b
	}
	if err := p.openTarget(ctx); err != nil {
		return nil, err
	}
	p.began = time.Now()
	err := p.run(ctx)
	return &p.report, errors.Join(err, p.close())
}

type pull struct {
	o       PullOptions
	src     Source
	root    *os.Root
	lock    *os.File
	block   blockSize // of the round
	files   map[string]*targetFile
	buffers sync.Pool // of stretches
	report  Report
	began   time.Time
}

func (p *pull) close() error {
	err := p.forget()
	if p.lock != nil {
		err = errors.Join(err, p.lock.Close())
	}
	return errors.Join(err, p.root.Close())
}

func (p *pull) openTarget(ctx context.Context) error {
	if err := os.MkdirAll(p.o.DBPath, 0o700); err != nil {
		return fmt.Errorf("seed: cannot make the new data directory: %w", err)
	}
	root, err := os.OpenRoot(p.o.DBPath)
	if err != nil {
		return fmt.Errorf("seed: cannot open the new data directory: %w", err)
	}
	p.root = root
	p.report.Resumed, err = claim(root, p.o.relay == nil)
	replaces := errors.Is(err, errNotEmpty) && p.o.Replace != nil
	if err == nil || replaces {
		p.lock, err = lockDirectory(root, true)
	}
	if err == nil && replaces {
		err = p.o.Replace(ctx, root)
	}
	if err != nil {
		return errors.Join(err, p.close())
	}
	return nil
}

// claim accepts an empty directory, or an incomplete copy. replaceable says that the command has --replace.
func claim(root *os.Root, replaceable bool) (resumes bool, err error) {
	if poisoned(root) {
		return true, nil
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return false, fmt.Errorf("seed: cannot read %s: %w", root.Name(), err)
	}
	for _, e := range entries {
		// Left by a start that failed before the first byte, or by a new file system.
		if name := e.Name(); name != "mongod.lock" && name != "lost+found" && name != storageTemp {
			if !replaceable {
				return false, mongo.WithHint(fmt.Errorf("%w: it has %s", notEmptyError(root.Name()), name),
					"give an empty directory, or empty it")
			}
			return false, mongo.WithHint(fmt.Errorf("%w: it has %s", notEmptyError(root.Name()), name),
				"give an empty directory; only --replace overwrites files, if they are that member's own")
		}
	}
	return false, nil
}

var errNotEmpty = errors.New("is not empty")

func notEmptyError(dir string) error { return fmt.Errorf("seed: %s %w", dir, errNotEmpty) }

const storageTemp = "storage.bson.millrace"

func (p *pull) poison() error {
	if poisoned(p.root) {
		return nil
	}
	f, err := p.root.OpenFile(storageTemp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.WriteString(poisonText)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = p.root.Rename(storageTemp, storageFile)
	}
	if err == nil {
		err = syncDir(p.root, ".")
	}
	if err != nil {
		return mongo.WithHint(fmt.Errorf("seed: cannot mark the new data directory as incomplete: %w", err),
			"let millrace write there")
	}
	return nil
}

func (p *pull) run(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := p.round(ctx)
		if !errors.Is(err, errNoRound) || attempt == 3 {
			return err
		}
		p.o.Log.Warn("the round ended; beginning another one with what is there", "attempt", attempt)
	}
}

func (p *pull) round(ctx context.Context) (err error) {
	m, err := p.src.Join(ctx)
	if err != nil {
		return err
	}
	staying := p.stay(ctx, m)
	defer func() { // also after an error: others need not wait for this puller
		staying()
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = p.src.Leave(leaving, m.Round, m.Puller)
	}()
	if err := m.check(); err != nil {
		return err
	}
	if p.o.Check != nil {
		if err := p.o.Check(m); err != nil {
			return err
		}
	}
	p.report.Way, p.report.Origin = m.Way, m.Origin
	if p.block != m.BlockSize { // checksums of other blocks are useless
		p.block = m.BlockSize
		if err := p.forget(); err != nil {
			return err
		}
	}
	if err := p.room(m); err != nil {
		return err
	}
	if err := p.begin(m); err != nil {
		return err
	}
	p.o.relay.begin(m)
	defer func() { p.o.relay.end(err) }()
	final, err := p.passes(ctx, m)
	if err != nil {
		return err
	}
	if err := final.check(m.BlockSize); err != nil {
		return err
	}
	began := time.Now()
	p.report.LockSeconds, p.report.ChangedBytes, p.report.Lock = final.LockSeconds, final.ChangedBytes, final.Lock
	if err := p.secondPass(ctx, m, final); err != nil {
		return err
	}
	err = p.complete(ctx, final)
	p.report.FinishSeconds = time.Since(began).Seconds()
	if err == nil {
		p.o.relay.complete(final)
	}
	return err
}

func (p *pull) forget() error {
	var errs []error
	for _, f := range p.files {
		errs = append(errs, f.close())
	}
	p.files = map[string]*targetFile{}
	return errors.Join(errs...)
}

func (p *pull) passes(ctx context.Context, m *Manifest) (*Final, error) {
	began := time.Now()
	final, cloned, err := p.clone(ctx, m)
	if cloned || err != nil {
		p.report.FreezeSeconds += time.Since(began).Seconds()
		return final, err
	}
	if err := p.firstPass(ctx, m); err != nil {
		return nil, err
	}
	p.report.CopySeconds += time.Since(began).Seconds()
	began = time.Now()
	p.o.Stats.enter(PhaseFreeze, 0)
	final, err = p.src.Freeze(ctx, m.Round, m.Puller)
	p.report.FreezeSeconds += time.Since(began).Seconds()
	return final, err
}

// begin marks the directory as incomplete, and removes files that the copy does not need.
func (p *pull) begin(m *Manifest) error {
	if err := p.poison(); err != nil {
		return err
	}
	if err := p.lock.Truncate(0); err != nil { // of a server that was killed
		return fmt.Errorf("seed: cannot empty mongod.lock: %w", err)
	}
	keep := map[string]bool{storageFile: true}
	for _, f := range m.Files {
		keep[f.Path] = true
	}
	err := p.removeOthers(keep)
	p.report.PrepareSeconds = time.Since(p.began).Seconds()
	return err
}

func (p *pull) room(m *Manifest) error {
	files, err := listCopy(p.root)
	if err != nil {
		return err
	}
	sizes := make(map[string]int64, len(m.Files))
	for _, f := range m.Files {
		sizes[f.Path] = f.Size
	}
	var there int64
	for _, f := range files {
		if size, stays := sizes[f.Path]; stays {
			f.Size = min(f.Size, size)
		}
		there += f.Size // other files make room
	}
	return checkRoom(p.o.DBPath, m.Bytes-there)
}

func checkRoom(dir string, need int64) error {
	free, err := freeBytes(existing(dir))
	if err == nil && free < need+need/50 {
		err = mongo.WithHint(fmt.Errorf("seed: the copy needs %s, %s has %s free", humanize.Bytes(uint64(need)), dir,
			humanize.Bytes(uint64(free))), "make room, or choose another directory")
	}
	return err
}

func (p *pull) firstPass(ctx context.Context, m *Manifest) error {
	p.o.Stats.enter(PhaseCopy, m.Bytes)
	outer := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.o.Workers)
	for _, f := range m.Files {
		if ctx.Err() != nil {
			break
		}
		t, err := p.target(f)
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		// At least one block is asked for: the file may have grown.
		blocks := max(p.block.blocks(f.Size), 1)
		for first := int64(0); first < blocks && ctx.Err() == nil; first += p.block.perRange() {
			n := min(p.block.perRange(), blocks-first)
			complete := first == 0 && n == blocks
			g.Go(func() error {
				err := p.fetchRange(ctx, m, t, first, n)
				if complete { // a process may not open as many files
					err = errors.Join(err, t.close())
				}
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return outer.Err()
}

func (p *pull) target(f File) (*targetFile, error) {
	if t := p.files[f.Path]; t != nil {
		return t, nil
	}
	local, err := p.place(f.Path)
	if err != nil {
		return nil, err
	}
	t := &targetFile{root: p.root, name: local, block: int64(p.block), buffers: &p.buffers, expected: f.Size}
	p.files[f.Path] = t
	return t, nil
}

// place makes a file's directory, and returns the name of the file until the copy is complete.
func (p *pull) place(name string) (string, error) {
	if name == storageFile {
		return storageTemp, nil // renamed as the last step
	}
	if dir := path.Dir(name); dir != "." {
		if err := p.root.MkdirAll(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("seed: cannot make %s: %w", dir, err)
		}
	}
	return name, nil
}

func (p *pull) fetchRange(ctx context.Context, m *Manifest, t *targetFile, first, n int64) error {
	have, err := t.sums(first, n)
	if err != nil {
		return err
	}
	q := t.request(m, first, have)
	err = p.fetch(ctx, t, q, &p.report.CopiedBytes)
	t.startWriting(first, n)
	if err == nil {
		p.o.relay.arrived(q.Path, first/p.block.perRange())
	}
	return err
}

func (f *targetFile) request(m *Manifest, first int64, have []Sum) ReadRequest {
	q := ReadRequest{Round: m.Round, Puller: m.Puller, Path: f.name, First: first, Have: have}
	if f.name == storageTemp {
		q.Path = storageFile
	}
	return q
}

func (p *pull) fetch(ctx context.Context, t *targetFile, q ReadRequest, written *int64) error {
	s := stretch{f: t}
	err := p.src.Read(ctx, q, func(b Block) error {
		if b.Index < q.First || b.Index >= q.First+int64(len(q.Have)) || int64(len(b.Data)) > t.block {
			return fmt.Errorf("seed: the agent sent block %d of %s unasked", b.Index, q.Path)
		}
		if b.Same {
			if b.Sum != q.Have[b.Index-q.First] {
				return fmt.Errorf("seed: the agent claims that block %d of %s is there", b.Index, q.Path)
			}
			p.o.Stats.pass(t.block)
			return nil
		}
		if sumOf(b.Data) != b.Sum {
			return mongo.WithHint(fmt.Errorf("seed: block %d of %s arrived damaged", b.Index, q.Path),
				"run it again: it uses the other blocks")
		}
		if err := s.add(b); err != nil {
			return err
		}
		if err := p.o.Limit.Wait(ctx, 1, int64(len(b.Data))); err != nil {
			return err
		}
		p.o.Stats.pass(int64(len(b.Data)), written)
		return nil
	})
	return errors.Join(err, s.end())
}

func (p *pull) secondPass(ctx context.Context, m *Manifest, final *Final) error {
	var todo int64
	for _, f := range final.Files {
		if !f.Same {
			todo += f.Size
		}
	}
	p.o.Stats.enter(PhaseAgain, todo)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.o.Workers)
	for _, f := range final.Files {
		if f.Same {
			if p.files[f.Path] == nil {
				_ = g.Wait()
				return fmt.Errorf("seed: the agent calls %s unchanged, but never sent it", f.Path)
			}
			continue
		}
		t, err := p.target(f.File)
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error { return errors.Join(p.again(ctx, m, t, f), t.close()) })
	}
	return g.Wait()
}

func (p *pull) again(ctx context.Context, m *Manifest, t *targetFile, f FinalFile) error {
	blocks := p.block.blocks(f.Size)
	if err := t.resize(f.Size); err != nil {
		return err
	}
	for first := int64(0); first < blocks; first += p.block.perRange() {
		n := min(p.block.perRange(), blocks-first)
		have, err := t.sums(first, n)
		if err != nil {
			return err
		}
		if slices.Equal(have, f.Sums[first:first+n]) {
			p.o.Stats.pass(n * t.block)
			continue
		}
		if err := p.fetch(ctx, t, t.request(m, first, have), &p.report.AgainBytes); err != nil {
			return err
		}
		if have, err = t.sums(first, n); err != nil {
			return err
		}
		if !slices.Equal(have, f.Sums[first:first+n]) {
			return mongo.WithHint(fmt.Errorf("seed: %s is not as it was under the lock", f.Path),
				"run it again: it uses what is there")
		}
	}
	return nil
}

func (p *pull) complete(ctx context.Context, final *Final) error {
	p.o.Stats.enter(PhaseSync, 0)
	keep := map[string]bool{}
	p.report.Files, p.report.Bytes = len(final.Files), final.Bytes
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(p.o.Workers)
	for _, f := range final.Files {
		keep[f.Path] = true
		t := p.files[f.Path]
		g.Go(func() error {
			if gctx.Err() != nil {
				return gctx.Err()
			}
			return t.finish(f.Size)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := p.removeOthers(keep); err != nil {
		return err
	}
	if err := syncTree(p.root); err != nil {
		return err
	}
	if err := p.root.Rename(storageTemp, storageFile); err != nil {
		return fmt.Errorf("seed: cannot complete the copy: %w", err)
	}
	return syncDir(p.root, ".")
}

func (p *pull) removeOthers(keep map[string]bool) error {
	files, err := listCopy(p.root)
	if err != nil {
		return err
	}
	for _, f := range files {
		if keep[f.Path] {
			continue
		}
		if err := p.root.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("seed: cannot remove a file that the source does not have: %w", err)
		}
	}
	return nil
}
