package wire

import (
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/millrace/millrace/internal/bsonraw"
)

// maxReply bounds a reply after decompression: the server's maxMessageSizeBytes.
const maxReply = 48_000_000

// replyDepth is how deep a reply is checked: its fields and those of its cursor, but no document of a batch.
const replyDepth = 2

// unpacker reads replies. It is not safe for concurrent use.
type unpacker struct {
	zstd *zstd.Decoder // made when the first reply needs it
}

// reply returns the body of an OP_MSG reply. It checks sizes before it allocates memory.
func (u *unpacker) reply(wm []byte) (bsoncore.Document, error) {
	length, _, _, op, rem, ok := wiremessage.ReadHeader(wm)
	if !ok || int(length) != len(wm) {
		return nil, fmt.Errorf("malformed reply header (%d bytes)", len(wm))
	}
	if op == wiremessage.OpCompressed {
		var err error
		if op, rem, err = u.decompress(rem); err != nil {
			return nil, err
		}
	}
	if op != wiremessage.OpMsg {
		return nil, fmt.Errorf("reply has opcode %d, want OP_MSG", op)
	}
	flags, rem, ok := wiremessage.ReadMsgFlags(rem)
	if !ok || flags&wiremessage.ChecksumPresent != 0 {
		return nil, errors.New("malformed reply flags")
	}
	kind, rem, ok := wiremessage.ReadMsgSectionType(rem)
	if !ok || kind != wiremessage.SingleDocument {
		return nil, errors.New("reply does not start with a body section")
	}
	body, _, ok := wiremessage.ReadMsgSectionSingleDocument(rem)
	if !ok {
		return nil, errors.New("truncated reply body")
	}
	if !bsonraw.Valid(body, replyDepth) {
		return nil, errors.New("malformed reply body")
	}
	return body, nil
}

func (u *unpacker) decompress(rem []byte) (wiremessage.OpCode, []byte, error) {
	op, rem, ok1 := wiremessage.ReadCompressedOriginalOpCode(rem)
	size, rem, ok2 := wiremessage.ReadCompressedUncompressedSize(rem)
	id, rem, ok3 := wiremessage.ReadCompressedCompressorID(rem)
	if !ok1 || !ok2 || !ok3 || size < 0 || size > maxReply {
		return 0, nil, errors.New("malformed compressed reply")
	}
	var out []byte
	var err error
	if id == wiremessage.CompressorZstd {
		out, err = u.zstandard(rem, int(size))
	} else {
		out, err = driver.DecompressPayload(rem, driver.CompressionOpts{Compressor: id, UncompressedSize: size})
	}
	if err == nil && len(out) != int(size) {
		err = fmt.Errorf("it has %d bytes and claims %d", len(out), size)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("decompress reply: %w", err)
	}
	return op, out, nil
}

// zstandard replaces the driver's decoder, which accepts frames of up to 64 GB.
func (u *unpacker) zstandard(in []byte, size int) ([]byte, error) {
	if u.zstd == nil {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxReply))
		if err != nil {
			return nil, err
		}
		u.zstd = d
	}
	return u.zstd.DecodeAll(in, make([]byte, 0, size))
}
