package verify

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
)

// Lender lends slices of large collections to other processes. A borrower reads a slice
// and sends the sums of its documents' hashes; what differs is then looked into here, as
// ever. Borrowers only read. A loan counts once and as a whole: what a lost borrower has
// read is read again, and what it sends late is refused. Its methods are safe for
// concurrent use.
type Lender struct {
	version string
	lease   time.Duration

	mu       sync.Mutex
	sides    [2]*mongo.Cluster
	mark     func(loan string) string // of the rules
	shares   []*share
	loans    map[string]*loan
	arriving *loan // whose sums come: one at a time, each takes the memory of a table
	helpers  map[string]*Helper
	changed  chan struct{} // closed when something is given back, or done
}

// Helper is another process that has read slices.
type Helper struct {
	Worker      string
	Slices      int // that it has now
	Docs, Bytes int64
}

// NewLender makes a lender for one comparison. Borrowers are of the same version of the
// program; one that is silent for the time of a lease loses what it has.
func NewLender(version string, lease time.Duration) *Lender {
	return &Lender{version: version, lease: lease, loans: map[string]*loan{}, helpers: map[string]*Helper{}, changed: make(chan struct{})}
}

// share is a side whose slices are read here and elsewhere.
type share struct {
	*digester
	of   *slicing
	i    int
	wait []scan.Slice
	lent int
}

// loan is a slice that a borrower has.
type loan struct {
	of       *share
	id       string
	slice    scan.Slice
	worker   string
	borrower string
	heard    time.Time
	sums     []group // as far as they have come
	next     int     // group
}

// lendFor says what is compared.
func (l *Lender) lendFor(sides [2]*mongo.Cluster, mark func(loan string) string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sides, l.mark = sides, mark
}

// ready reports that borrowers can tell both clusters from others.
func (l *Lender) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mark != nil && !l.sides[source].Info.SetID.IsZero() && !l.sides[target].Info.SetID.IsZero()
}

// lends reports that slices of the collection may be lent. What only the target has is
// not paired by the rules.
func (d *digester) lends() bool {
	return d.e.o.Lender != nil && d.sides[source].exists && d.e.o.Lender.ready()
}

// slicesToLend is how many slices so many bytes have at least, so that others find some.
func (e *Engine) slicesToLend(bytes int64) int {
	const most = 1024
	if e.o.Lender == nil {
		return 0
	}
	return int(min(bytes/(4*e.o.RangeBytes), most))
}

// read reads all slices of a side, but for those that others read.
func (l *Lender) read(ctx context.Context, s *share, begin func() reading) error {
	l.mu.Lock()
	l.shares = append(l.shares, s)
	l.mu.Unlock()
	defer l.close(s)
	g, ctx := errgroup.WithContext(ctx)
	for range min(s.readers, len(s.of.parts)) {
		g.Go(func() error {
			for {
				sl, err := l.take(ctx, s)
				if err != nil || sl == nil {
					return err
				}
				if err := s.of.scanSlice(ctx, *sl, begin()); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// close ends a share. Nothing of its loans is taken any more.
func (l *Lender) close(s *share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shares = slices.DeleteFunc(l.shares, func(o *share) bool { return o == s })
	for _, one := range l.loans {
		if one.of == s {
			l.drop(one)
		}
	}
}

// take is the next slice to be read here, nil when all have been read, here or elsewhere.
func (l *Lender) take(ctx context.Context, s *share) (*scan.Slice, error) {
	for {
		l.mu.Lock()
		l.reclaim()
		if len(s.wait) > 0 {
			sl := s.wait[0]
			s.wait = s.wait[1:]
			l.mu.Unlock()
			return &sl, nil
		}
		lent, changed := s.lent, l.changed
		l.mu.Unlock()
		if lent == 0 {
			return nil, nil
		}
		select {
		case <-changed:
		case <-time.After(l.lease / 10):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// reclaim takes back what silent borrowers have. The caller holds mu.
func (l *Lender) reclaim() {
	for _, one := range l.loans {
		if silent := time.Since(one.heard); silent > l.lease {
			one.of.e.o.Log.Warn("a worker that read a part says nothing; the part is read again", "worker", one.worker, "ns", one.of.pair.SourceNS, "silent", silent.Round(time.Millisecond))
			l.giveBack(one)
		}
	}
}

// giveBack has a slice be read by somebody else. The caller holds mu.
func (l *Lender) giveBack(one *loan) {
	one.of.wait = append([]scan.Slice{one.slice}, one.of.wait...)
	l.drop(one)
}

// drop ends a loan. The caller holds mu.
func (l *Lender) drop(one *loan) {
	delete(l.loans, one.id)
	one.of.lent--
	l.helpers[one.worker].Slices--
	if l.arriving == one {
		one.of.e.c.account(-groupCost * len(one.sums))
		l.arriving = nil
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// Waiting is how many slices others may read now.
func (l *Lender) Waiting() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.shares {
		n += len(s.wait)
	}
	return n
}

// Helpers are those that have read slices, or do.
func (l *Lender) Helpers() (list []Helper) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.helpers {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b Helper) int { return cmp.Compare(a.Worker, b.Worker) })
	return list
}

// Answer answers a request of a borrower.
func (l *Lender) Answer(_ context.Context, request []byte) []byte {
	var a loanAsk
	var r loanReply
	if err := bson.Unmarshal(request, &a); err != nil {
		r.Refused = "the request cannot be read"
	} else {
		r = l.reply(&a)
	}
	raw, err := bson.Marshal(r)
	if err != nil {
		return nil // the borrower cannot read that, and ends
	}
	return raw
}

func (l *Lender) reply(a *loanAsk) loanReply {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reclaim()
	switch a.Kind {
	case askSlice:
		return l.lend(a)
	case askAlive:
		for one := range maps.Values(l.loans) {
			if one.borrower == a.Borrower {
				one.heard = time.Now()
			}
		}
		return loanReply{}
	}
	one := l.loans[a.Loan]
	if one == nil || one.borrower != a.Borrower {
		return loanReply{Gone: true}
	}
	one.heard = time.Now()
	switch a.Kind {
	case askSums:
		return l.takeSums(one, a)
	case askBack:
		l.giveBack(one)
		return loanReply{Gone: true}
	}
	return loanReply{Refused: "there is no request " + a.Kind}
}

// Bounds of what is lent at a time: a borrower has a few slices at once.
const (
	mostHelpers = 64
	mostLoans   = 16 * mostHelpers
)

// lend lends a slice, the last of those that wait: here they are read from the first on.
func (l *Lender) lend(a *loanAsk) loanReply {
	if a.Version != l.version {
		return loanReply{Refused: fmt.Sprintf("it is of version %s, the verification's worker of version %s", a.Version, l.version)}
	}
	h := l.helpers[a.Worker]
	if len(l.loans) >= mostLoans || h == nil && len(l.helpers) >= mostHelpers {
		return loanReply{}
	}
	for _, s := range l.shares {
		last := len(s.wait) - 1
		if last < 0 {
			continue
		}
		one := &loan{of: s, id: rand.Text(), slice: s.wait[last], worker: a.Worker, borrower: a.Borrower, heard: time.Now()}
		s.wait = s.wait[:last]
		s.lent++
		l.loans[one.id] = one
		if h == nil {
			h = &Helper{Worker: a.Worker}
			l.helpers[a.Worker] = h
		}
		h.Slices++
		return loanReply{Slice: l.terms(one)}
	}
	return loanReply{More: true}
}

func (l *Lender) terms(one *loan) *lentSlice {
	s := one.of
	t := &lentSlice{Loan: one.id, Side: s.i, SourceNS: s.pair.SourceNS, Slice: one.slice, Seed: int64(s.seed), Groups: len(s.tables[s.i].groups),
		SourceSet: l.sides[source].Info.SetID, TargetSet: l.sides[target].Info.SetID, Rules: l.mark(one.id), Lease: l.lease}
	if at := s.e.at[s.i].Load(); at != nil {
		t.At = *at
	}
	return t
}

// takeSums takes a piece of a slice's sums, and adds all of them to the table when the last
// one has come.
func (l *Lender) takeSums(one *loan, a *loanAsk) loanReply {
	switch l.arriving {
	case nil:
		one.sums, one.next = make([]group, len(one.of.tables[one.of.i].groups)), 0
		one.of.e.c.account(groupCost * len(one.sums))
		l.arriving = one
	case one:
	default:
		return loanReply{More: true}
	}
	end := one.next + len(a.Groups)/groupCost
	if a.From != one.next || end > len(one.sums) || end == one.next || !takeGroups(one.sums[one.next:end], a.Groups) {
		l.giveBack(one)
		return loanReply{Refused: "it has sent sums that do not fit the slice"}
	}
	if one.next = end; end < len(one.sums) {
		return loanReply{}
	}
	if !one.of.tables[one.of.i].merge(one.sums, a.Docs, a.Bytes) {
		l.giveBack(one)
		return loanReply{Refused: "its sums are not of as many documents as it says"}
	}
	one.of.e.c.read(int(a.Docs), a.Bytes)
	h := l.helpers[one.worker]
	h.Docs += a.Docs
	h.Bytes += a.Bytes
	l.drop(one)
	return loanReply{Gone: true}
}

// merge adds sums of other documents, if they are of so many.
func (t *table) merge(sums []group, docs, bytes int64) bool {
	var n uint64
	for i := range sums {
		n += sums[i].n
	}
	if n != uint64(docs) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range sums {
		g, s := &t.groups[i], &sums[i]
		g.x += s.x
		g.y += s.y
		g.n += s.n
	}
	t.docs += docs
	t.bytes += bytes
	return true
}
