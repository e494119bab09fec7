package seed

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// The blocks of a reply are frames: kind, checksum, length, bytes. A reply
// ends with a frame that says so; without one it was cut.
const (
	frameEnd byte = iota
	frameRaw
	frameZstd
	frameSame
	frameZero // length zeros, none of them sent
	frameError
)

const frameHead = 1 + 8 + 4

// frameWriter writes blocks.
type frameWriter struct {
	w        *bufio.Writer
	compress *zstd.Encoder // nil sends as it is
	packed   []byte
}

func (w *frameWriter) frame(kind byte, sum Sum, length int, payload []byte) error {
	var head [frameHead]byte
	head[0] = kind
	binary.LittleEndian.PutUint64(head[1:], uint64(sum))
	binary.LittleEndian.PutUint32(head[9:], uint32(length))
	if _, err := w.w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.w.Write(payload)
	return err
}

func (w *frameWriter) block(b Block) error {
	switch {
	case b.Same:
		return w.frame(frameSame, b.Sum, 0, nil)
	case isZero(b.Data):
		return w.frame(frameZero, b.Sum, len(b.Data), nil)
	case w.compress != nil:
		w.packed = w.compress.EncodeAll(b.Data, w.packed[:0])
		if len(w.packed) < len(b.Data) {
			return w.frame(frameZstd, b.Sum, len(w.packed), w.packed)
		}
	}
	return w.frame(frameRaw, b.Sum, len(b.Data), b.Data)
}

// readFrames reads a reply; its blocks follow each other from first on. The
// bytes come from another machine: nothing is taken on trust but that a length
// within a block's may be read.
func readFrames(r io.Reader, first int64, count int, unpack *zstd.Decoder, fn func(Block) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var head [frameHead]byte
	var buf, data []byte
	for i := 0; ; i++ {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return fmt.Errorf("seed: the agent's reply was cut: %w", err)
		}
		kind, length := head[0], int64(binary.LittleEndian.Uint32(head[9:]))
		b := Block{Index: first + int64(i), Sum: Sum(binary.LittleEndian.Uint64(head[1:]))}
		if kind == frameEnd {
			return nil
		}
		if i >= count && kind != frameError || length > int64(largestBlock) {
			return errors.New("seed: the agent's reply makes no sense")
		}
		buf = slices.Grow(buf[:0], int(length))
		if kind != frameSame && kind != frameZero {
			if _, err := io.ReadFull(in, buf[:length]); err != nil {
				return fmt.Errorf("seed: the agent's reply was cut: %w", err)
			}
		}
		switch kind {
		case frameSame:
			b.Same = true
		case frameZero:
			clear(buf[:length])
			b.Data = buf[:length]
		case frameRaw:
			b.Data = buf[:length]
		case frameZstd:
			var err error
			if data, err = unpack.DecodeAll(buf[:length], data[:0]); err != nil || int64(len(data)) > int64(largestBlock) {
				return fmt.Errorf("seed: the agent's reply cannot be unpacked: %w", errOr(err))
			}
			b.Data = data
		case frameError:
			return &remoteError{text: string(buf[:length])}
		default:
			return errors.New("seed: the agent's reply makes no sense")
		}
		if err := fn(b); err != nil {
			return err
		}
	}
}
