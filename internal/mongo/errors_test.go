package mongo

import (
	"fmt"
	"testing"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

// TestKilledOperationPasses: killOp and killAllSessions end an operation, not a job.
func TestKilledOperationPasses(t *testing.T) {
	if got := Classify(driver.CommandError{Code: 11601, Name: "Interrupted"}); got != ClassRetry {
		t.Errorf("a killed operation is %s", got)
	}
}

func TestFullDiskOfABulkWritePasses(t *testing.T) {
	full := driver.WriteError{Code: 28, Message: "No space left on device"}
	for _, c := range []struct {
		err  error
		want Class
	}{
		{driver.BulkWriteException{WriteErrors: []driver.BulkWriteError{{WriteError: full}}}, ClassRetry},
		{driver.WriteException{WriteErrors: driver.WriteErrors{full}}, ClassRetry},
		{driver.BulkWriteException{WriteConcernError: &driver.WriteConcernError{Code: 64}}, ClassRetry},
		{driver.BulkWriteException{WriteErrors: []driver.BulkWriteError{{WriteError: driver.WriteError{Code: CodeDuplicateKey}}}}, ClassDuplicate},
	} {
		if got := Classify(fmt.Errorf("record: %w", c.err)); got != c.want {
			t.Errorf("%v is of class %s, want %s", c.err, got, c.want)
		}
	}
}
