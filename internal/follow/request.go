package follow

import (
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
)

// Refusal says why what an operator asks for is refused. Code is a word for programs.
type Refusal struct{ Code, Text string }

// Error is the text.
func (r *Refusal) Error() string { return r.Text }

// Refuse makes a Refusal with a hint.
func Refuse(code, hint, format string, args ...any) error {
	return mongo.WithHint(&Refusal{code, fmt.Sprintf(format, args...)}, hint)
}

// CodeBuilding refuses what would leave the target without indexes that the source is
// building.
const CodeBuilding = "building"

// StillBuilding refuses to finalize, or to begin, after a time.
func StillBuilding(what string, after time.Duration, building []schema.IndexName) error {
	return Refuse(CodeBuilding, "wait until the builds have ended, or end them with dropIndexes on the source, then "+what+
		" again; --index-wait says for how long the job waits",
		"cannot %s: after %s the source is still building %s", what, after, schema.NameAll(building))
}

// Finalize is the request to finalize a job, by an operator or by the job's definition. It is
// safe for concurrent use.
type Finalize struct {
	now       func() time.Time
	mu        sync.Mutex
	wanted    bool          // as soon as the job can
	at        time.Time     // from when on to finalize; zero: no time
	defined   bool          // the job's definition says when to finalize
	logged    bool          // the log has the request
	begun     bool          // it cannot be withdrawn any more
	withdrawn chan struct{} // closed and replaced when the request is withdrawn
	rejected  error         // why the job has withdrawn it by itself, if it has
}

// NewFinalize is the request of a job's definition: to finalize as soon as the job can, or
// from a time on. logged says that the log has an operator's request already.
func NewFinalize(now func() time.Time, wanted bool, at time.Time, logged bool) *Finalize {
	return &Finalize{now: now, wanted: wanted, at: at, defined: wanted || !at.IsZero(), logged: logged,
		withdrawn: make(chan struct{})}
}

// due reports that the job is to be finalized; begin says that it begins to if it is.
func (r *Finalize) due(begin bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	due := r.begun || r.wanted || !r.at.IsZero() && !r.now().Before(r.at)
	r.begun = r.begun || begin && due
	return due
}

// reject withdraws an operator's request for a reason. Where the job's definition says when to
// finalize, or an earlier run has begun to, the reason is returned: it ends the job.
func (r *Finalize) reject(reason error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.defined || r.begun {
		return reason
	}
	r.rejected = reason
	r.takeBack()
	return nil
}

// takeBack is called under mu.
func (r *Finalize) takeBack() {
	r.wanted, r.logged, r.at = false, false, time.Time{}
	close(r.withdrawn)
	r.withdrawn = make(chan struct{})
}

// Rejection is why the job has withdrawn the request by itself, nil if it has not.
func (r *Finalize) Rejection() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rejected
}

// Resume has the job finalize, which an earlier run of it has begun.
func (r *Finalize) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = true
}

// Request asks to finalize as soon as the job can. withdrawn is closed when that is taken
// back; isNew says that the log does not have it yet.
func (r *Finalize) Request() (withdrawn <-chan struct{}, isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isNew = !r.logged
	r.wanted, r.logged, r.rejected = true, true, nil
	return r.withdrawn, isNew
}

// Withdraw takes the request back unless the job has begun to finalize. was reports that
// there was one.
func (r *Finalize) Withdraw() (was, begun bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, begun = r.wanted || !r.at.IsZero(), r.begun
	if was && !begun {
		r.takeBack()
		r.defined = false
	}
	return was, begun
}

// Requested reports that the job is to finalize as soon as it can.
func (r *Finalize) Requested() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wanted || r.begun
}
