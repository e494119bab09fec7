package mongo

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/wire"
)

// WithLimit adds the server's connection limit to an error of a broken connection, where the limit is low: a
// server at its limit closes new connections.
func (c *Cluster) WithLimit(err error) error {
	const ample = 200 // pool and client have 64 each
	if n := c.Info.Connections; n > 0 && n < ample && brokenOff(err) {
		return WithHint(fmt.Errorf("%w (%s takes %d connections at once)", err, c.Address(), n),
			"raise net.maxIncomingConnections (--maxConns) there")
	}
	return err
}

func brokenOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// heartbeats keeps the error of each server's last check. The driver only returns that a check was cancelled, if
// another connection failed at the same time. It is safe for concurrent use.
type heartbeats struct {
	mu     sync.Mutex
	failed map[string]error // by address
}

func watchHeartbeats(opts *options.ClientOptions) *heartbeats {
	h := &heartbeats{failed: map[string]error{}}
	opts.SetServerMonitor(&event.ServerMonitor{ServerHeartbeatFailed: func(e *event.ServerHeartbeatFailedEvent) {
		if errors.Is(e.Failure, context.Canceled) {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.failed[addressOf(e.ConnectionID)] = e.Failure
	}})
	return h
}

// addressOf is the server in a connection's id of the driver's events.
func addressOf(connectionID string) string {
	address, _, _ := strings.Cut(connectionID, "[-")
	return address
}

// why replaces a cancellation by the server's last error.
func (h *heartbeats) why(address string, err error) error {
	if h == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.failed[address], err)
}

// ExplainReach says which server cannot be reached and why, and adds a hint. The error keeps its class.
func ExplainReach(err error, opts *options.ClientOptions) error {
	return explainReach(err, opts, nil)
}

func explainReach(err error, opts *options.ClientOptions, checks *heartbeats) error {
	if err == nil {
		return nil
	}
	none, ok := wire.UnsuitableServers(err)
	if !ok {
		return WithHint(err, reachHint(err, opts))
	}
	if len(none.Servers) == 0 && opts.ReplicaSet != nil {
		return WithHint(&unreachable{fmt.Sprintf("no server there belongs to the replica set %q", *opts.ReplicaSet), err},
			"check replicaSet= in the connection string; rs.status().set on the server tells the name")
	}
	for i, s := range none.Servers {
		none.Servers[i].Err = checks.why(s.Address, s.Err)
	}
	hint, known := "wait for the election, or see with rs.status() why there is no primary", false
	for _, s := range none.Servers {
		if s.Err != nil && !known {
			hint = reachHint(s.Err, opts)
			known = hint != ""
		}
	}
	return WithHint(&unreachable{whyNone(none.Servers), err}, hint)
}

func whyNone(servers []wire.Unreachable) string {
	var failed, answering []string
	for _, s := range servers {
		if s.Err != nil {
			failed = append(failed, s.Address+": "+innermost(s.Err))
		} else {
			answering = append(answering, s.Address+" is "+s.Role)
		}
	}
	if len(failed) == 0 {
		return "no server that answers is suitable: " + strings.Join(answering, "; ")
	}
	return "no suitable server answers: " + strings.Join(append(failed, answering...), "; ")
}

// unreachable replaces the driver's long text.
type unreachable struct {
	text string
	err  error
}

func (u *unreachable) Error() string { return u.text }
func (u *unreachable) Unwrap() error { return u.err }

// innermost is the part of a connection's error that says what failed.
func innermost(err error) string {
	if wire.AuthFailed(err) {
		return err.Error()
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return e.Error()
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	if errors.Is(err, io.EOF) {
		return "the server closes the connection"
	}
	return err.Error()
}

func reachHint(err error, opts *options.ClientOptions) string {
	withTLS := opts.TLSConfig != nil
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if !slices.ContainsFunc(opts.Hosts, func(h string) bool { return strings.HasPrefix(h, dns.Name) }) {
			return "the replica set names its members so (rs.conf()); each of these names has to resolve on this machine, by " +
				"DNS or /etc/hosts"
		}
		return "the name in the connection string has to resolve on this machine, by DNS or /etc/hosts"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "name the authority that signed the server's certificate: tlsCAFile=… in the connection string"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "connect by a name that the server's certificate is for; the replica set has to name its members so, too"
	}
	if _, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return "the server's certificate has to be renewed, or this machine's clock is wrong"
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return "the server refuses the client's certificate, or wants one: tlsCertificateKeyFile=… in the connection string"
	}
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	cut := brokenOff(err)
	switch {
	case wire.AuthFailed(err):
		return "check user and password (percent-encode special characters), authSource, the database in which the user " +
			"was made (often admin), and authMechanism"
	case noTLS, cut && withTLS:
		return "the server seems to speak no TLS: leave tls=true out of the connection string; or it has as many " +
			"connections as it takes; its log says which"
	case cut:
		return "the server seems to want TLS: add tls=true (and tlsCAFile=…) to the connection string; or it has as many " +
			"connections as it takes (net.maxIncomingConnections); its log says which"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: check host and port, and that the server runs"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no way to that address from this machine: check the network"
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return "nothing comes back from there: check the address, and firewalls on the way"
	}
	return ""
}

// questions are what a driver's client has under way. It is safe for concurrent use.
type questions struct {
	waits wire.Waits

	mu        sync.Mutex
	commands  map[int64]*wire.Wait
	checkouts map[string]checkouts // by address
	headless  *wire.Wait           // nil while there is a primary
}

// checkouts are those of one server's connections that have not ended.
type checkouts struct {
	open int
	wait *wire.Wait // since the first of them began, or another one ended
}

func (q *questions) watch(opts options.ClientOptions) *options.ClientOptions {
	servers := *opts.ServerMonitor
	servers.TopologyDescriptionChanged = q.described
	opts.SetServerMonitor(&servers).SetPoolMonitor(&event.PoolMonitor{Event: q.pooled})
	return opts.SetMonitor(&event.CommandMonitor{
		Started:   func(_ context.Context, e *event.CommandStartedEvent) { q.asked(e) },
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { q.answered(e.RequestID) },
		Failed:    func(_ context.Context, e *event.CommandFailedEvent) { q.answered(e.RequestID) },
	})
}

func (q *questions) asked(e *event.CommandStartedEvent) {
	if e.CommandName == "createIndexes" { // takes as long as the data are large, and has a progress of its own
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.commands == nil {
		q.commands = map[int64]*wire.Wait{}
	}
	q.commands[e.RequestID] = q.waits.Add("to answer " + e.CommandName + " on " + addressOf(e.ConnectionID))
}

func (q *questions) answered(id int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits.Forget(q.commands[id])
	delete(q.commands, id)
}

func (q *questions) pooled(e *event.PoolEvent) {
	step := map[string]int{event.ConnectionCheckOutStarted: 1, event.ConnectionCheckedOut: -1,
		event.ConnectionCheckOutFailed: -1}[e.Type]
	if step == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.checkouts == nil {
		q.checkouts = map[string]checkouts{}
	}
	c := q.checkouts[e.Address]
	if c.open += step; step < 0 || c.open == 1 {
		q.waits.Forget(c.wait)
		c.wait = nil
	}
	if c.open > 0 && c.wait == nil {
		c.wait = q.waits.Add("to give a connection to " + e.Address)
	}
	q.checkouts[e.Address] = c
}

// described notes whether a server takes writes.
func (q *questions) described(e *event.TopologyDescriptionChangedEvent) {
	writes := slices.ContainsFunc(e.NewDescription.Servers, func(s event.ServerDescription) bool {
		return s.Kind == "RSPrimary" || s.Kind == "Mongos" || s.Kind == "Standalone"
	})
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case writes:
		q.waits.Forget(q.headless)
		q.headless = nil
	case q.headless == nil:
		q.headless = q.waits.Add("to have a primary")
	}
}

// Waits returns what the oldest operation under way waits for, such as "to have a primary", and since when: zero for
// none. Index builds do not count.
func (c *Cluster) Waits() (what string, since time.Time) {
	what, since = c.asks.waits.Oldest()
	if pooled, began := c.Pool.Waits(); since.IsZero() || !began.IsZero() && began.Before(since) {
		return pooled, began
	}
	return what, since
}
