package follow

import (
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
)

// Refusal refuses a request of an operator. Code is for programs.
type Refusal struct{ Code, Text string }

// Error is the text.
func (r *Refusal) Error() string { return r.Text }

// Refuse makes a Refusal with a hint.
func Refuse(code, hint, format string, args ...any) error {
	return mongo.WithHint(&Refusal{code, fmt.Sprintf(format, args...)}, hint)
}

// CodeBuilding refuses a request while the source builds indexes.
const CodeBuilding = "building"

// StillBuilding refuses to finalize or to start because of index builds on the source.
func StillBuilding(what string, after time.Duration, building []schema.IndexName) error {
	return Refuse(CodeBuilding, "wait until the builds have ended, or end them with dropIndexes on the source, then "+what+
		" again; --index-wait says for how long the job waits",
		"cannot %s: after %s the source is still building %s", what, after, schema.NameAll(building))
}

// Finalize is the request to finalize a job, from an operator or the job's definition. It is safe for
// concurrent use.
type Finalize struct {
	now       func() time.Time
	mu        sync.Mutex
	wanted    bool          // as soon as possible
	at        time.Time     // not before; zero: no time
	defined   bool          // requested by the job's definition
	logged    bool          // the log contains the request
	begun     bool          // too late to withdraw
	withdrawn chan struct{} // closed and replaced when the request is withdrawn
	rejected  error         // why the job withdrew the request itself
}

// NewFinalize returns the request of a job's definition: finalize as soon as possible (wanted), or
// from a time on. logged reports that the log contains an operator's request already.
func NewFinalize(now func() time.Time, wanted bool, at time.Time, logged bool) *Finalize {
	return &Finalize{now: now, wanted: wanted, at: at, defined: wanted || !at.IsZero(), logged: logged,
		withdrawn: make(chan struct{})}
}

// due reports whether to finalize; with begin, the request can no longer be withdrawn if so.
func (r *Finalize) due(begin bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	due := r.begun || r.wanted || !r.at.IsZero() && !r.now().Before(r.at)
	r.begun = r.begun || begin && due
	return due
}

// reject withdraws an operator's request for a reason. It returns the reason, which ends the job, if
// the definition requested it or an earlier run began to finalize.
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

// Rejection returns why the job withdrew the request itself, nil if it did not.
func (r *Finalize) Rejection() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rejected
}

// Resume continues a finalize that an earlier run began.
func (r *Finalize) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = true
}

// Request requests to finalize as soon as possible. withdrawn is closed when the request is withdrawn;
// isNew reports that the log does not contain it yet.
func (r *Finalize) Request() (withdrawn <-chan struct{}, isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isNew = !r.logged
	r.wanted, r.logged, r.rejected = true, true, nil
	return r.withdrawn, isNew
}

// Withdraw withdraws the request unless the job has begun to finalize. was reports that there was one.
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

// Requested reports whether to finalize as soon as possible.
func (r *Finalize) Requested() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wanted || r.begun
}
