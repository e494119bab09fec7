package state

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// lease is how long ownership lasts after its last proof. An owner without one stops writing. A job
// whose beat stands still for leaseLost, which is longer, may be taken over.
const (
	lease     = 10 * time.Second
	leaseLost = lease + 2*time.Second
)

const never = -1000 * time.Hour

func stopwatch() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// Owner is the run that has a job. A process may hold several.
type Owner struct {
	Run  string `bson:"run"` // drawn by chance
	Host string `bson:"host"`
	PID  int    `bson:"pid"`
	// Start distinguishes the process from a later one with the same id. Space names its machine
	// since boot and its namespace of process ids.
	Start string `bson:"start"`
	Space string `bson:"space"`
}

func (o Owner) String() string { return o.Host + "/" + strconv.Itoa(o.PID) }

// NewRun draws the name of a run.
func NewRun() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// ThisProcess names the calling process as the owner of a run.
func ThisProcess(run string) Owner {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return Owner{Run: run, Host: host, PID: os.Getpid(), Start: startOf(os.Getpid()), Space: space()}
}

// space names the boot of this machine and the namespace of process ids, or is "" if unknown. Two
// containers of a machine may have the same host name, and each its own process 1.
func space() string {
	boot, err1 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, err2 := os.Readlink("/proc/self/ns/pid")
	if err1 != nil || err2 != nil {
		return ""
	}
	return string(bytes.TrimSpace(boot)) + " " + pids
}

// startOf is in clock ticks since boot (field 22 of stat, proc(5)); "" without a process or /proc.
func startOf(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The second field, the command's name, may hold spaces; it ends with the last ')'.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 20 {
		return ""
	}
	return string(fields[19])
}

func (o Owner) dead() bool { return o.deadBy(startOf) }

func (o Owner) deadBy(startOf func(pid int) string) bool {
	me := ThisProcess("")
	if o.Host != me.Host || me.Start == "" || me.Space == "" || o.Space != me.Space {
		return false
	}
	if start := startOf(o.PID); start != "" {
		return start != o.Start
	}
	// A process of another user may be hidden (hidepid in proc(5)), and lives all the same.
	p, err := os.FindProcess(o.PID)
	if err != nil {
		return errors.Is(err, os.ErrProcessDone)
	}
	defer func() { _ = p.Release() }()
	return errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

// TakeOver changes the owner if fence and beat are as they were read. See Lease.
func (s *Mongo) TakeOver(ctx context.Context, waiting func(Owner)) (Job, error) {
	job, found, err := s.Load(ctx)
	if err != nil {
		return job, err
	}
	if !found {
		return job, fmt.Errorf("take over job %s: it does not exist", s.o.Job)
	}
	if job.Owner.Run != s.o.Run && job.Owner != (Owner{}) && !job.Owner.dead() {
		waiting(job.Owner)
		if err := s.watchBeat(ctx, job); err != nil {
			return job, err
		}
	}
	failpoint.Hit("take.before")
	defer failpoint.Hit("take.after")
	began, fence := s.now(), job.Fence+1
	unchanged := bson.D{{Key: "fence", Value: job.Fence}, {Key: "beat", Value: job.Beat}}
	raw, err := s.c.Command(ctx, mongo.StateDB, updateJob(bson.D{
		// An answer that was lost may have made this run the owner already.
		{Key: "q", Value: bson.D{{Key: "_id", Value: s.o.Job},
			{Key: "$or", Value: bson.A{unchanged, bson.D{{Key: "owner.run", Value: s.o.Run}}}}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{
			{Key: "fence", Value: fence}, {Key: "version", Value: FormatVersion},
			{Key: "owner", Value: ThisProcess(s.o.Run)}}}}},
	}, "majority"))
	if err == nil {
		_, err = answer(raw)
	}
	if errors.Is(err, ErrFenced) {
		return job, s.running(job.Owner)
	}
	if err != nil {
		return job, fmt.Errorf("take over job %s: %w", s.o.Job, err)
	}
	mine := job
	mine.Fence, mine.Version, mine.Owner = fence, FormatVersion, ThisProcess(s.o.Run)
	s.owns(mine, began)
	return job, nil
}

func (s *Mongo) running(o Owner) error {
	return mongo.WithHint(fmt.Errorf("job %s: %w (%s)", s.o.Job, ErrRunning, o),
		"stop that process first; `millrace status` there shows it")
}

// watchBeat fails if the owner gives a sign of life within leaseLost.
func (s *Mongo) watchBeat(ctx context.Context, job Job) error {
	for began := time.Now(); time.Since(began) < leaseLost; {
		if err := pace.Pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		now, found, err := s.Load(ctx)
		if err != nil {
			return err
		}
		if found && now.Owner == (Owner{}) {
			return nil
		}
		if found && (now.Beat != job.Beat || now.Fence != job.Fence) {
			return s.running(now.Owner)
		}
	}
	return nil
}

// Owned goes by a clock that nobody sets. See Lease.
func (s *Mongo) Owned() error {
	s.mu.Lock()
	since := s.now() - s.proven
	s.mu.Unlock()
	if since <= lease {
		return nil
	}
	return mongo.Retry(fmt.Sprintf("the target has not confirmed for %s that this process owns job %s",
		since.Round(time.Second), s.o.Job), nil, "")
}

// Release makes the owner nobody. See Lease.
func (s *Mongo) Release(ctx context.Context, noted ...bson.E) error {
	set := bson.D{{Key: "$set", Value: append(bson.D{{Key: "owner", Value: Owner{}}}, noted...)}}
	_, err := s.c.Command(ctx, mongo.StateDB, updateJob(bson.D{{Key: "q", Value: s.mine()}, {Key: "u", Value: set}}, 1))
	return mongo.Wrap(err, "release job %s", s.o.Job)
}
