package seed

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/mongo"
)

const (
	rangeBytes  = 4 << 20   // of a file, read by one request
	chunkBytes  = 256 << 10 // read at once, a block at least
	maxFiles    = 4 << 20   // in a manifest
	maxFileSize = 64 << 40  // 64 TiB
)

// Way is how the source is made to stand still.
type Way string

const (
	WayCursor  Way = "backup-cursor" // $backupCursor, where the server has it
	WayLock    Way = "fsync-lock"    // fsyncLock on a secondary or hidden member
	WayStopped Way = "stopped"       // the member is shut down
)

// Sum is a block's checksum; 0 is an unknown one.
type Sum uint64

// sumOf is never 0. It hashes all blocks of changed files under the lock, so it has to be fast.
func sumOf(b []byte) Sum {
	if s := xxh3.Hash(b); s != 0 {
		return Sum(s)
	}
	return 1
}

// Storage are the storage options of the source, which the new member needs.
type Storage struct {
	DirectoryPerDB      bool   `json:"directoryPerDB"`
	DirectoryForIndexes bool   `json:"directoryForIndexes"`
	Compressor          string `json:"blockCompressor,omitempty"`
}

// Origin is the source as it was when the round began.
type Origin struct {
	Host    string  `json:"host,omitempty"`
	SetName string  `json:"setName,omitempty"`
	Version string  `json:"version,omitempty"`
	FCV     string  `json:"featureCompatibility,omitempty"`
	State   string  `json:"state,omitempty"` // PRIMARY, SECONDARY, stopped
	LagSecs float64 `json:"lagSeconds"`
	Storage Storage `json:"storage"`
	// ClusterRole is shardsvr, configsvr, or empty, as for a stopped member.
	ClusterRole string       `json:"clusterRole,omitempty"`
	Oplog       mongo.OpTime `json:"-"`
	WindowSecs  float64      `json:"oplogWindowSeconds"` // of the set's oplog; 0 is unknown
}

// File is one file of the source. Path is relative, with slashes.
type File struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// Manifest opens a round.
type Manifest struct {
	Round     string    `json:"round"`
	Puller    string    `json:"puller"`
	Way       Way       `json:"way"`
	Why       string    `json:"why"` // why this way
	Origin    Origin    `json:"origin"`
	BlockSize blockSize `json:"blockSize"` // unit of the round's checksums and requests
	Files     []File    `json:"files"`
	Bytes     int64     `json:"bytes"`
}

// FinalFile is a file as the frozen source has it.
type FinalFile struct {
	File
	Same bool  `json:"same"`           // unchanged since the round first read it
	Sums []Sum `json:"sums,omitempty"` // of its blocks, unless Same
}

// Final closes a round: what the files hold at one moment.
type Final struct {
	Files        []FinalFile `json:"files"`
	Bytes        int64       `json:"bytes"`
	LockSeconds  float64     `json:"lockSeconds"`
	ChangedBytes int64       `json:"changedBytes"` // put aside under the lock
	Lock         LockTimes   `json:"lock,omitzero"`
}

// LockTimes are the steps before and under a lock, in seconds.
type LockTimes struct {
	// CatchUp is the time of the passes before the lock, Settle that of their checkpoints.
	CatchUp     float64 `json:"catchUpSeconds"`
	Settle      float64 `json:"settleSeconds"`
	CaughtBytes int64   `json:"caughtBytes"`
	// Take is from the start of the guardian to its report; most of it is the server's checkpoint.
	Take float64 `json:"takeSeconds"`
	// Under the lock: list files, read and compare ComparedBytes, check that no file changed, unlock.
	List          float64 `json:"listSeconds"`
	Compare       float64 `json:"compareSeconds"`
	ComparedBytes int64   `json:"comparedBytes"`
	Check         float64 `json:"checkSeconds"`
	Release       float64 `json:"releaseSeconds"`
}

// ReadRequest asks for len(Have) blocks from block First on. Have are the puller's checksums, 0 for a missing block.
type ReadRequest struct {
	Round  string `json:"round"`
	Puller string `json:"puller"`
	Path   string `json:"path"`
	First  int64  `json:"first"`
	Have   []Sum  `json:"have"`
}

// Block is one block of a reply.
type Block struct {
	Index int64
	Sum   Sum
	Same  bool   // the puller has it, and Data is nil
	Data  []byte // valid during the callback
}

// Source is where files come from: an Agent, or a Client of one.
type Source interface {
	// Join opens a round or joins the one that is open.
	Join(ctx context.Context) (*Manifest, error)
	// Read calls fn for blocks in order; fewer than asked for where the file ends.
	Read(ctx context.Context, r ReadRequest, fn func(Block) error) error
	// Freeze reports that this puller has read everything once, waits for the others,
	// and returns what the files hold at one moment.
	Freeze(ctx context.Context, round, puller string) (*Final, error)
	// Leave reports that this puller needs nothing more.
	Leave(ctx context.Context, round, puller string) error
}

// blockSize is the unit, in bytes, that is compared and copied again. A checkpoint rewrites pages of 16 or 32 KB.
// After 27 MB of changes, blocks of 16 KB copy 45 MB again, 64 KB 104, 256 KB 309 (6.0.5, 600 updates in 600
// files). Each block costs the agent 24 bytes of memory.
type blockSize int64

const (
	smallestBlock blockSize = 16 << 10
	largestBlock  blockSize = stretchBytes
	manyBlocks              = 4 << 20 // above which larger ones are used: 64 GB of the smallest
)

func blockSizeOf(bytes int64) blockSize {
	b := smallestBlock
	for b < largestBlock && b.blocks(bytes) > manyBlocks {
		b *= 2
	}
	return b
}

func (b blockSize) blocks(size int64) int64 { return (size + int64(b) - 1) / int64(b) }

func (b blockSize) perRange() int64 { return rangeBytes / int64(b) }

// checkPath accepts only names of files that make up a data directory. They come from another machine.
func checkPath(p string) error {
	widest := Storage{DirectoryPerDB: true, DirectoryForIndexes: true}
	if p == "." || len(p) > 1024 || !fs.ValidPath(p) || strings.ContainsAny(p, "\\\x00") || widest.kindOf(p) != needed {
		return fmt.Errorf("seed: %q is not a file of a data directory", p)
	}
	return nil
}

func checkFile(f File, seen map[string]bool) error {
	if err := checkPath(f.Path); err != nil {
		return err
	}
	if f.Size < 0 || f.Size > maxFileSize {
		return fmt.Errorf("seed: %s cannot have %d bytes", f.Path, f.Size)
	}
	if seen[f.Path] {
		return fmt.Errorf("seed: the agent names %s twice", f.Path)
	}
	seen[f.Path] = true
	return nil
}

func (m *Manifest) check() error {
	if m.Round == "" || m.Puller == "" || len(m.Files) == 0 || len(m.Files) > maxFiles {
		return fmt.Errorf("seed: the manifest of round %q is invalid: it has %d files", m.Round, len(m.Files))
	}
	if b := m.BlockSize; b < smallestBlock || b > largestBlock || b&(b-1) != 0 {
		return fmt.Errorf("seed: the manifest is invalid: it has blocks of %d bytes", m.BlockSize)
	}
	seen := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		if err := checkFile(f, seen); err != nil {
			return err
		}
	}
	return nil
}

func (f *Final) check(b blockSize) error {
	if len(f.Files) == 0 || len(f.Files) > maxFiles {
		return fmt.Errorf("seed: the final state is invalid: it has %d files", len(f.Files))
	}
	seen := make(map[string]bool, len(f.Files))
	for _, x := range f.Files {
		if err := checkFile(x.File, seen); err != nil {
			return err
		}
		if !x.Same && int64(len(x.Sums)) != b.blocks(x.Size) {
			return fmt.Errorf("seed: the final state of %s is invalid: it has %d checksums", x.Path, len(x.Sums))
		}
	}
	if !seen[storageFile] {
		return mongo.WithHint(fmt.Errorf("seed: the source has no %s", storageFile),
			"give the data directory of a mongod with the WiredTiger engine")
	}
	return nil
}
