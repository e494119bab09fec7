package mongo

import (
	"testing"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

// TestKilledOperationPasses: killOp and killAllSessions end an operation, not a job.
func TestKilledOperationPasses(t *testing.T) {
	if got := Classify(driver.CommandError{Code: 11601, Name: "Interrupted"}); got != ClassRetry {
		t.Errorf("a killed operation is %s", got)
	}
}
