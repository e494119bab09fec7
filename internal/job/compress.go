package job

import (
	"math"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/wire"
)

// Compress says when what is exchanged with source and target is compressed, where
// the connection string names no compressor.
type Compress string

// The values of Compress.
const (
	CompressAuto Compress = "auto" // while it is found to move more than without
	CompressOff  Compress = "off"
)

// tellCompression logs what is found for a side.
func (j *Job) tellCompression(side string) func(wire.Compression) {
	return func(c wire.Compression) {
		msg := "what is exchanged is compressed no more"
		if c.On {
			msg = "what is exchanged is compressed with zstd"
		}
		j.log.Info(msg, "side", side, "gain", rounded(c.Gain))
	}
}

func compression(c *mongo.Cluster) progress.Compression {
	now := c.Pool.Compression()
	return progress.Compression{On: now.On, Gain: rounded(now.Gain)}
}

func rounded(gain float64) float64 { return math.Round(100*gain) / 100 }
