package job

import (
	"testing"

	"github.com/millrace/millrace/internal/mongo"
)

// TestRepairedAtTheEnd: a run that ends when it has just repaired the last document says so.
func TestRepairedAtTheEnd(t *testing.T) {
	j := &Job{session: session{source: &source{}, dst: &mongo.Cluster{}}, control: &control{done: make(chan struct{})}}
	one := &Repair{Target: "d.c"}
	calls := 0
	err := j.Repair(t.Context(), []*Repair{one}, func(now []Repair) {
		if calls++; calls == 1 {
			one.Outcome = RepairWritten
			close(j.control.done)
		}
	})
	if err != nil || calls != 2 {
		t.Errorf("%v, told %d times", err, calls)
	}
}
