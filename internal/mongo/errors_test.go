package mongo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/wire"
)

// TestKilledOperationPasses: killOp and killAllSessions end an operation, not a job.
func TestKilledOperationPasses(t *testing.T) {
	if got := Classify(driver.CommandError{Code: 11601, Name: "Interrupted"}); got != ClassRetry {
		t.Errorf("a killed operation is %s", got)
	}
}

// TestBusyServerPasses: a server that has too much to do ends no job.
func TestBusyServerPasses(t *testing.T) {
	for code, name := range map[int32]string{24: "LockTimeout", 133: "FailedToSatisfyReadPreference",
		215: "DatabaseDropPending", 343: "ShardCannotRefreshDueToLocksHeld",
		365: "TemporarilyUnavailable", 388: "TransactionTooLargeForCache", 462: "IngressRequestRateLimitExceeded"} {
		for _, err := range []error{driver.CommandError{Code: code, Name: name}, wire.WriteError{Code: code}} {
			if got := Classify(err); got != ClassRetry {
				t.Errorf("%s is %s", name, got)
			}
		}
	}
	if got := Classify(driver.CommandError{Code: 99999, Labels: []string{"SystemOverloadedError",
		"RetryableError"}}); got != ClassRetry {
		t.Errorf("what the server calls retryable is %s", got)
	}
}

// TestNeedsRole: only where a privilege is missing is it told which.
func TestNeedsRole(t *testing.T) {
	if err := NeedsRole(fmt.Errorf("list: %w", driver.CommandError{Code: CodeUnauthorized}),
		"a role"); HintOf(err) != "a role" {
		t.Error(err)
	}
	if err := NeedsRole(fmt.Errorf("list: %w", io.EOF), "a role"); HintOf(err) != "" || !errors.Is(err, io.EOF) {
		t.Error(err, HintOf(err))
	}
	if NeedsRole(nil, "a role") != nil {
		t.Error("an error of none")
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
		{driver.BulkWriteException{WriteErrors: []driver.BulkWriteError{
			{WriteError: driver.WriteError{Code: CodeDuplicateKey}},
		}}, ClassDuplicate},
	} {
		if got := Classify(fmt.Errorf("record: %w", c.err)); got != c.want {
			t.Errorf("%v is of class %s, want %s", c.err, got, c.want)
		}
	}
}

// TestFileErrorsDoNotPass: the number in an error of a file is not that of a network.
func TestFileErrorsDoNotPass(t *testing.T) {
	_, err := os.Open("/nowhere/at/all")
	if got := Classify(fmt.Errorf("spool: %w", err)); got != ClassFatal {
		t.Errorf("%v is of class %s", err, got)
	}
}

func TestRetryable(t *testing.T) {
	said := driver.CommandError{Code: 72, Message: "ahead of its own"}
	err := fmt.Errorf("read a.b: %w", Retry("the member has not reached the position", said, "wait"))
	if Classify(err) != ClassRetry || HintOf(err) != "wait" || !IsCode(err, 72) {
		t.Errorf("%v: class %s, hint %q", err, Classify(err), HintOf(err))
	}
	var own *Retryable
	if !errors.As(err, &own) || own.Message != "the member has not reached the position" {
		t.Errorf("%v is no Retryable", err)
	}
	// What no server said looks like no server's error.
	err = Retry("the primary has changed", nil, "")
	var ce driver.CommandError
	var we wire.WriteError
	if errors.As(err, &ce) || errors.As(err, &we) || err.Error() != "the primary has changed" ||
		Classify(err) != ClassRetry {
		t.Errorf("%v: class %s", err, Classify(err))
	}
	if err := Retry("x", context.Canceled, ""); Classify(err) != ClassCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("a job that was ended goes on: %v", err)
	}
}

// TestWriteErrorsAreClassified: an entry of a reply's writeErrors is an error as a
// command's is.
func TestWriteErrorsAreClassified(t *testing.T) {
	for code, want := range map[int32]Class{CodeDuplicateKey: ClassDuplicate, 82: ClassRetry, 10107: ClassRetry,
		CodeNamespaceNotFound: ClassGone, 121: ClassFatal} {
		err := fmt.Errorf("insert into a.b: %w", wire.WriteError{Code: code, Message: "m"})
		if got := Classify(err); got != want || !IsCode(err, code) {
			t.Errorf("%v is of class %s, want %s", err, got, want)
		}
	}
}

func TestInterrupted(t *testing.T) {
	concern, err := bson.Marshal(bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "timed out"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		res         wire.WriteResult
		interrupted bool
	}{
		"all well":    {wire.WriteResult{N: 3}, false},
		"duplicate":   {wire.WriteResult{Errors: []wire.WriteError{{Code: CodeDuplicateKey}}}, false},
		"not primary": {wire.WriteResult{Errors: []wire.WriteError{{Code: CodeDuplicateKey}, {Index: 1, Code: 10107}}}, true},
		"full disk":   {wire.WriteResult{Errors: []wire.WriteError{{Code: 28, Message: "No space left on device"}}}, true},
		"path": {wire.WriteResult{Errors: []wire.WriteError{{Code: 28,
			Message: "Cannot create field 'b' in element {a: \"No space left on device\"}"}}}, false},
		"write concern": {wire.WriteResult{ConcernError: concern}, true},
	} {
		err := Interrupted(c.res)
		if (err != nil) != c.interrupted {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && Classify(err) != ClassRetry {
			t.Errorf("%s: %v is of class %s", name, err, Classify(err))
		}
	}
}

// TestChecksCutShort: what a server's last whole check failed with is told, not
// that the driver cut the next one short.
func TestChecksCutShort(t *testing.T) {
	opts := options.Client().ApplyURI("mongodb://here:1")
	checks := watchHeartbeats(opts)
	for _, err := range []error{io.EOF, fmt.Errorf("read: %w", context.Canceled)} {
		opts.ServerMonitor.ServerHeartbeatFailed(&event.ServerHeartbeatFailedEvent{ConnectionID: "here:1[-7]", Failure: err})
	}
	if got := checks.why("here:1", context.Canceled); !errors.Is(got, io.EOF) {
		t.Error(got)
	}
	if got := checks.why("there:1", context.Canceled); !errors.Is(got, context.Canceled) {
		t.Error(got)
	}
	if got := checks.why("here:1", os.ErrClosed); !errors.Is(got, os.ErrClosed) {
		t.Error(got)
	}
}

// TestRefusedDirectly: a shard of 8.0 that refuses a client's command gets the hint of that, whatever callers know.
func TestRefusedDirectly(t *testing.T) {
	const text = "You are connecting to a sharded cluster improperly by connecting directly to a shard. Please " +
		"connect to the cluster via a router (mongos). Command: find, Namespace: shop.orders"
	for _, refused := range []error{driver.CommandError{Code: CodeUnauthorized, Name: "Unauthorized", Message: text},
		wire.WriteError{Code: CodeUnauthorized, Message: text}} {
		err := WithHint(NeedsRole(fmt.Errorf("shard s0: %w", refused), "the user needs listDatabases"), "grant read")
		hint := HintOf(err)
		if !RefusedDirectly(err) || !strings.Contains(hint, "directShardOperations") ||
			!strings.Contains(hint, "--via routers") {
			t.Errorf("%v: hint %q", err, hint)
		}
	}
	for _, other := range []error{nil, io.EOF, driver.CommandError{Code: CodeUnauthorized, Message: "not authorized on a"},
		driver.CommandError{Code: CodeBadValue, Message: text}} {
		if RefusedDirectly(other) || strings.Contains(HintOf(other), "directShardOperations") {
			t.Errorf("%v counts as refused by a shard", other)
		}
	}
}
