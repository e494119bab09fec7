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
	// rangeBytes is how much of a file is read by one request.
	rangeBytes = 4 << 20
	// chunkBytes is how much of it is read at once, a block at least.
	chunkBytes = 256 << 10
	// maxFiles bounds what a manifest may claim.
	maxFiles = 4 << 20
	// maxFileSize is the largest file taken seriously, 64 TiB.
	maxFileSize = 64 << 40
)

// Way is how the source is made to stand still.
type Way string

// The ways.
const (
	// WayCursor is $backupCursor, where the server has it.
	WayCursor Way = "backup-cursor"
	// WayLock is fsyncLock on a secondary or hidden member.
	WayLock Way = "fsync-lock"
	// WayStopped is a member that is shut down.
	WayStopped Way = "stopped"
)

// Sum is a block's checksum; 0 is an unknown one.
type Sum uint64

// sumOf is never 0. It is the fastest that there is: under the lock every block
// of every file that was written to is summed up.
func sumOf(b []byte) Sum {
	if s := xxh3.Hash(b); s != 0 {
		return Sum(s)
	}
	return 1
}

// Storage is what the new member's mongod has to be started with.
type Storage struct {
	DirectoryPerDB      bool   `json:"directoryPerDB"`
	DirectoryForIndexes bool   `json:"directoryForIndexes"`
	Compressor          string `json:"blockCompressor,omitempty"`
}

// Origin is the member that is copied, as it stood when the round began.
type Origin struct {
	Host    string  `json:"host,omitempty"`
	SetName string  `json:"setName,omitempty"`
	Version string  `json:"version,omitempty"`
	FCV     string  `json:"featureCompatibility,omitempty"`
	State   string  `json:"state,omitempty"` // PRIMARY, SECONDARY, stopped
	LagSecs float64 `json:"lagSeconds"`
	Storage Storage `json:"storage"`
	// ClusterRole is what mongod was started as: shardsvr or configsvr; empty for neither,
	// and for a stopped member.
	ClusterRole string       `json:"clusterRole,omitempty"`
	Oplog       mongo.OpTime `json:"-"`
	// WindowSecs is the time that the set's oplog holds; 0 is unknown.
	WindowSecs float64 `json:"oplogWindowSeconds"`
}

// File is one file of the source; Path is relative, with slashes.
type File struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// Manifest opens a round.
type Manifest struct {
	Round  string `json:"round"`
	Puller string `json:"puller"`
	Way    Way    `json:"way"`
	Why    string `json:"why"` // why this way
	Origin Origin `json:"origin"`
	// BlockSize is the unit of the round's checksums and requests.
	BlockSize blockSize `json:"blockSize"`

	Files []File `json:"files"`
	Bytes int64  `json:"bytes"`
}

// FinalFile is a file as the frozen source holds it.
type FinalFile struct {
	File
	// Same reports that nothing changed since the round first read the file.
	Same bool `json:"same"`
	// Sums are the checksums of its blocks unless Same.
	Sums []Sum `json:"sums,omitempty"`
}

// Final closes a round: what the files hold at one moment.
type Final struct {
	Files       []FinalFile `json:"files"`
	Bytes       int64       `json:"bytes"`
	LockSeconds float64     `json:"lockSeconds"`
	// ChangedBytes were put aside under the lock.
	ChangedBytes int64     `json:"changedBytes"`
	Lock         LockTimes `json:"lock,omitzero"`
}

// LockTimes tell what the time under a lock went into, and what was done before
// it to keep it short. Times are in seconds.
type LockTimes struct {
	// CatchUp is the time of the passes without a lock that came before it;
	// they put CaughtBytes aside. Of it, the checkpoints that they began with
	// took Settle.
	CatchUp     float64 `json:"catchUpSeconds"`
	Settle      float64 `json:"settleSeconds"`
	CaughtBytes int64   `json:"caughtBytes"`
	// Take is from the start of the guardian to its word that the member is
	// locked; most of it is the server's checkpoint, before which it works.
	Take float64 `json:"takeSeconds"`
	// What the lock lasts for: to list the files, to read ComparedBytes and
	// compare them, to make sure that nothing was written, to unlock.
	List          float64 `json:"listSeconds"`
	Compare       float64 `json:"compareSeconds"`
	ComparedBytes int64   `json:"comparedBytes"`
	Check         float64 `json:"checkSeconds"`
	Release       float64 `json:"releaseSeconds"`
}

// ReadRequest asks for Count blocks of a file from block First on. Have holds
// the checksums of what the puller has, 0 for what it has not.
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
	// Same reports that the puller has it; Data is nil then.
	Same bool
	Data []byte // valid during the callback
}

// Source is where files come from: an Agent, or a Client of one.
type Source interface {
	// Join opens a round or joins the one that is open.
	Join(ctx context.Context) (*Manifest, error)
	// Read gives blocks in order; fewer than asked for where the file ends.
	Read(ctx context.Context, r ReadRequest, fn func(Block) error) error
	// Freeze says that this puller has read everything once, waits for the
	// others, and returns what the files hold at one moment.
	Freeze(ctx context.Context, round, puller string) (*Final, error)
	// Leave reports that this puller needs nothing more.
	Leave(ctx context.Context, round, puller string) error
}

// blockSize is the unit, in bytes, that is compared by checksum and copied again.
// A checkpoint rewrites single pages all over a file, 16 or 32 KB each: of 27 MB
// that one changed, blocks of 16 KB copy 45 MB again, 64 KB 104, 256 KB 309 (6.0.5,
// 600 updates in 600 files). Each costs the agent 24 bytes of memory.
type blockSize int64

const (
	smallestBlock blockSize = 16 << 10
	largestBlock  blockSize = stretchBytes
	// manyBlocks is how many there may be before larger ones are taken: 64 GB of
	// the smallest.
	manyBlocks = 4 << 20
)

// blockSizeOf chooses the size for a copy of so many bytes.
func blockSizeOf(bytes int64) blockSize {
	b := smallestBlock
	for b < largestBlock && b.blocks(bytes) > manyBlocks {
		b *= 2
	}
	return b
}

// valid tells sizes that blockSizeOf may give.
func (b blockSize) valid() bool {
	return b >= smallestBlock && b <= largestBlock && b&(b-1) == 0
}

// blocks is the number of blocks of a file.
func (b blockSize) blocks(size int64) int64 { return (size + int64(b) - 1) / int64(b) }

// perRange is how many blocks one request reads.
func (b blockSize) perRange() int64 { return rangeBytes / int64(b) }

// checkPath accepts the names of files that make up a WiredTiger data
// directory, and nothing else. Names come from another machine.
func checkPath(p string) error {
	widest := Storage{DirectoryPerDB: true, DirectoryForIndexes: true}
	if p == "." || len(p) > 1024 || !fs.ValidPath(p) || strings.ContainsAny(p, "\\\x00") || widest.kindOf(p) != needed {
		return fmt.Errorf("seed: %q is no file of a data directory", p)
	}
	return nil
}

// checkFile checks a file that the other side names.
func checkFile(f File) error {
	if err := checkPath(f.Path); err != nil {
		return err
	}
	if f.Size < 0 || f.Size > maxFileSize {
		return fmt.Errorf("seed: %s cannot have %d bytes", f.Path, f.Size)
	}
	return nil
}

// checkManifest checks what the other side sent.
func (m *Manifest) check() error {
	if m.Round == "" || m.Puller == "" || len(m.Files) == 0 || len(m.Files) > maxFiles {
		return fmt.Errorf("seed: a manifest of %d files in round %q is none", len(m.Files), m.Round)
	}
	if !m.BlockSize.valid() {
		return fmt.Errorf("seed: the manifest names blocks of %d bytes", m.BlockSize)
	}
	seen := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		if err := checkFile(f); err != nil {
			return err
		}
		if seen[f.Path] {
			return fmt.Errorf("seed: the manifest names %s twice", f.Path)
		}
		seen[f.Path] = true
	}
	return nil
}

// check checks what the other side sent.
func (f *Final) check(b blockSize) error {
	if len(f.Files) == 0 || len(f.Files) > maxFiles {
		return fmt.Errorf("seed: a final state of %d files is none", len(f.Files))
	}
	seen := make(map[string]bool, len(f.Files))
	for _, x := range f.Files {
		if err := checkFile(x.File); err != nil {
			return err
		}
		if seen[x.Path] || !x.Same && int64(len(x.Sums)) != b.blocks(x.Size) {
			return fmt.Errorf("seed: the final state of %s makes no sense", x.Path)
		}
		seen[x.Path] = true
	}
	if !seen[storageFile] {
		return mongo.WithHint(fmt.Errorf("seed: the source has no %s", storageFile),
			"give the data directory of a mongod with the WiredTiger engine")
	}
	return nil
}
