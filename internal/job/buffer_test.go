package job

import (
	"testing"

	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
)

// TestApplyBuffer: all parts together are no more than the whole, for any number
// of partitions, and each is some.
func TestApplyBuffer(t *testing.T) {
	for _, bytes := range []int64{LeastApplyBuffer, 16 << 20, 100_000_001, DefaultApplyBuffer, 8 << 30} {
		for _, partitions := range []int{0, 1, 2, 7, 8, 64, 1000} {
			b := newApplyBuffer(bytes, partitions)
			if partitions == 0 {
				partitions = mongosink.DefaultPartitions
			}
			all := b.readAhead + int64(b.batch) + b.transactions + b.inFlight + int64(partitions)*fold.MostKept*int64(b.kept)
			if all > bytes || all < bytes*9/10 {
				t.Errorf("%d bytes for %d partitions: %d in %+v", bytes, partitions, all, b)
			}
			if min(b.readAhead, b.transactions, b.inFlight, int64(b.batch), int64(b.writes), int64(b.kept)) < 1 {
				t.Errorf("%d bytes for %d partitions: %+v", bytes, partitions, b)
			}
			if int64(partitions)*int64(b.writes) > max(b.inFlight, int64(partitions)) {
				t.Errorf("%d bytes for %d partitions: batches of writes wait for more than is let in: %+v", bytes, partitions, b)
			}
		}
	}
	if a, b := newApplyBuffer(0, 0), newApplyBuffer(DefaultApplyBuffer, mongosink.DefaultPartitions); a != b {
		t.Errorf("the default is %+v, not %+v", a, b)
	}
}
