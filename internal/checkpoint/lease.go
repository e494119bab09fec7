package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
)

// BeatEvery is how often an owner proves itself by Store.Beat.
const BeatEvery = 2 * time.Second

// lease is how long ownership holds after it was last proven: an owner that
// could not prove it for so long stops writing, and a job whose beat stood
// still for so long may be taken over. The taker waits longer than the owner
// dares.
const (
	lease     = 10 * time.Second
	leaseLost = lease + 2*time.Second
)

// never is before any moment that Store.now tells, by more than a lease.
const never = -1000 * time.Hour

// stopwatch is a clock that nobody sets. It stands while the machine sleeps.
func stopwatch() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// ErrRunning means that another process runs the job.
var ErrRunning = errors.New("another millrace process runs this job")

// Owner is the process that runs a job.
type Owner struct {
	Host  string `bson:"host"`
	PID   int    `bson:"pid"`
	Start string `bson:"start"` // tells it from a later process of the same id
}

// String is "host/pid".
func (o Owner) String() string { return o.Host + "/" + strconv.Itoa(o.PID) }

// ThisProcess names the calling process.
func ThisProcess() Owner {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return Owner{Host: host, PID: os.Getpid(), Start: startOf(os.Getpid())}
}

// startOf is a process's start time in clock ticks since boot (proc(5), field
// 22 of stat), "" when there is no such process or no /proc.
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

// dead reports an owner on this machine that does not exist any more. Of one on
// another machine nothing is known.
func (o Owner) dead() bool {
	me := ThisProcess()
	if o.Host != me.Host || me.Start == "" {
		return false
	}
	return startOf(o.PID) != o.Start
}

// TakeOver makes this process the owner of an existing job and returns it. A
// living owner is not displaced: that is ErrRunning. Where only time can tell,
// waiting is called and the beat is watched for some seconds.
func (s *Store) TakeOver(ctx context.Context, waiting func(Owner)) (Job, error) {
	job, found, err := s.Load(ctx)
	if err != nil {
		return job, err
	}
	if !found {
		return job, fmt.Errorf("take over job %s: it does not exist", s.job)
	}
	if job.Owner != (Owner{}) && job.Owner != ThisProcess() && !job.Owner.dead() {
		waiting(job.Owner)
		if err := s.watchBeat(ctx, job); err != nil {
			return job, err
		}
	}
	failpoint.Hit("take.before")
	defer failpoint.Hit("take.after")
	began := s.now()
	err = s.db.Collection("jobs").FindOneAndUpdate(ctx,
		bson.D{{Key: "_id", Value: s.job}, {Key: "fence", Value: job.Fence}, {Key: "beat", Value: job.Beat}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "fence", Value: int64(1)}}}, {Key: "$set", Value: bson.D{{Key: "owner", Value: ThisProcess()}}}},
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&job)
	if errors.Is(err, driver.ErrNoDocuments) {
		return job, s.running(job.Owner)
	}
	if err != nil {
		return job, fmt.Errorf("take over job %s: %w", s.job, err)
	}
	s.own(job.Fence, began)
	return job, nil
}

func (s *Store) running(o Owner) error {
	return mongo.WithHint(fmt.Errorf("job %s: %w (%s)", s.job, ErrRunning, o), "stop that process first; `millrace status` there shows it")
}

// watchBeat waits as long as a lease lasts and fails when the owner gave a
// sign of life meanwhile. Only this process's clock is used, without the time
// in which the machine sleeps.
func (s *Store) watchBeat(ctx context.Context, job Job) error {
	for began := time.Now(); time.Since(began) < leaseLost; {
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
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

// Owned fails when ownership has not been proven for so long that another
// process may have taken the job: nothing may be written then. The failure
// passes with the next save that succeeds.
func (s *Store) Owned() error {
	s.mu.Lock()
	since := s.now() - s.proven
	s.mu.Unlock()
	if since <= lease {
		return nil
	}
	return driver.CommandError{Labels: []string{"RetryableWriteError"},
		Message: fmt.Sprintf("the target has not confirmed for %s that this process owns job %s", since.Round(time.Second), s.job)}
}

// Release gives the job up, so that another process can take it at once.
func (s *Store) Release(ctx context.Context) error {
	s.mu.Lock()
	fence := s.fence
	s.mu.Unlock()
	if fence == 0 {
		return nil
	}
	_, err := s.db.Collection("jobs").UpdateOne(ctx, bson.D{{Key: "_id", Value: s.job}, {Key: "fence", Value: fence}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "owner", Value: Owner{}}}}})
	if err != nil {
		return fmt.Errorf("release job %s: %w", s.job, err)
	}
	return nil
}
