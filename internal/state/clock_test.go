package state

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestClockIsNotTheWall: the clock of leases is that of the machine's uptime,
// whatever the wall clock says.
func TestClockIsNotTheWall(t *testing.T) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Skip(err)
	}
	seconds, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	up := time.Duration(seconds * float64(time.Second))
	if off := newClock()() - up; off < -time.Second || off > time.Minute {
		t.Errorf("the clock is %s off the uptime %s", off, up)
	}
}

// TestOwnershipEndsWhileAsleep: time in which nothing ran counts for an owner.
func TestOwnershipEndsWhileAsleep(t *testing.T) {
	now := 100 * time.Hour
	s := &Mongo{o: Options{Job: "j"}, now: func() time.Duration { return now }, proven: never}
	if s.Owned() == nil {
		t.Error("a job that nobody took is owned")
	}
	s.proven = s.now()
	now += lease
	if err := s.Owned(); err != nil {
		t.Errorf("within the lease: %v", err)
	}
	now += 3 * time.Hour
	if s.Owned() == nil {
		t.Error("owned after three hours of sleep")
	}
}
