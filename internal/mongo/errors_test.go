package mongo

import (
	"errors"
	"fmt"
	"testing"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

// What a server said when its disk was full, and errors that look alike.
func TestClassifyFullDisk(t *testing.T) {
	for _, c := range []struct {
		err  driver.CommandError
		want Class
	}{
		{driver.CommandError{Code: 8, Name: "UnknownError", Message: "28: No space left on device"}, ClassRetry},
		{driver.CommandError{Code: 14031, Name: "OutOfDiskSpace", Message: "available disk space of 1 bytes is less than required minimum of 500"}, ClassRetry},
		{driver.CommandError{Code: 8, Name: "UnknownError", Message: "5: Input/output error"}, ClassFatal},
		{driver.CommandError{Code: 2, Message: "No space left on device"}, ClassFatal},
	} {
		if got := Classify(WithHint(fmt.Errorf("create d.c: %w", errors.Join(c.err)), "x")); got != c.want {
			t.Errorf("%v is %s, want %s", c.err, got, c.want)
		}
	}
}
