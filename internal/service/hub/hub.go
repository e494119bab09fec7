// Package hub stores the state of the service in NATS JetStream, in this process or in a cluster. Only hub uses NATS.
// No data depend on it: a lease decides who tries, the target (state.Store) who may write.
package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
)

// DefaultLease is how long a silent worker keeps its jobs.
const DefaultLease = 15 * time.Second

// The prefix separates them from other contents of a cluster.
const (
	bucketJobs    = "millrace-jobs"
	bucketLeases  = "millrace-leases"
	bucketReports = "millrace-reports"
	bucketWorkers = "millrace-workers"
	bucketDrains  = "millrace-drains"
	streamAudit   = "millrace-audit"
	subjectAudit  = "millrace.audit"
)

// Options shape a hub.
type Options struct {
	// Embedded is a server in this process; without one URI names a cluster.
	Embedded *Embedded
	// URI is nats://host:4222, several with commas; Creds a file of NATS credentials, Token a secret.
	URI, Creds, Token string
	// Lease must be the same in all processes; 0 is DefaultLease.
	Lease time.Duration
	// Replicas must be the same in all processes; 0 is three in a cluster, else one.
	Replicas int
	// Format 0 is this release's.
	Format int
	Log    *slog.Logger
}

// Hub is a connection to the store of the service. It is safe for concurrent use.
type Hub struct {
	Jobs          Jobs
	Leases        Leases
	Workers       Workers
	Verifications Verifications
	Records       Records
	Alerts        Alerts
	Audit         Audit

	streams
	conn     *nats.Conn
	log      *slog.Logger
	embedded *Embedded
	asking   chan struct{} // held during Ready
	written  time.Time     // last success of Ready
	formats  formats
}

var (
	ErrExists   = errors.New("a job of this name is there already")
	ErrNotFound = errors.New("there is no job of this name")
	ErrChanged  = errors.New("somebody else has changed the job meanwhile")
	ErrHeld     = errors.New("somebody else has the lease")
)

// Open connects, and creates missing buckets and streams.
func Open(ctx context.Context, o Options) (*Hub, error) {
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	conn, err := dial(o)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("connect to NATS: %w", err),
			"check --nats and its credentials, and that the cluster has JetStream")
	}
	h := &Hub{conn: conn, formats: formats{mine: cmp.Or(o.Format, Format)}, log: o.Log, embedded: o.Embedded,
		asking: make(chan struct{}, 1)}
	h.Jobs.records = &h.Records
	h.Leases = Leases{ttl: o.Lease, holders: map[string]holder{}}
	h.Records.streams, h.Records.points = &h.streams, allSeries()
	h.Records.log = trail[service.Entry]{streams: &h.streams, seq: func(e *service.Entry) *uint64 { return &e.Seq }}
	h.Alerts.streams, h.Alerts.log = &h.streams, o.Log
	h.Audit.trail = trail[service.Change]{streams: &h.streams, seq: func(c *service.Change) *uint64 { return &c.Seq }}
	if h.js, err = jetstream.New(conn); err == nil {
		err = h.prepare(ctx, h.replicas(o.Replicas))
	}
	if err == nil {
		err = h.formats.enter(ctx)
	}
	if err != nil {
		h.Close()
		if few(err) {
			err = mongo.WithHint(err, "start the other nodes of the NATS cluster, with JetStream and room for files, or give "+
				"all processes of the service --nats-replicas 1")
		}
		return nil, fmt.Errorf("open the store of the service: %w", err)
	}
	return h, nil
}

func dial(o Options) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Name("millrace"), nats.MaxReconnects(-1), nats.ReconnectWait(500 * time.Millisecond),
		nats.RetryOnFailedConnect(false), nats.Timeout(10 * time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.Log.Warn("NATS cannot be reached; trying again", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { o.Log.Info("NATS can be reached again") }),
	}
	uri := o.URI
	if o.Embedded != nil {
		options, uri = append(options, nats.InProcessServer(o.Embedded)), ""
		if o.Token == "" {
			o.Token = o.Embedded.o.Token
		}
	}
	if o.Token != "" {
		options = append(options, nats.Token(o.Token))
	}
	if o.Creds != "" {
		options = append(options, nats.UserCredentials(o.Creds))
	}
	return nats.Connect(uri, options...)
}

// With three replicas one may be lost.
const replicasOfCluster = 3

func (h *Hub) replicas(wanted int) int {
	switch {
	case wanted > 0:
		return wanted
	case h.conn.ConnectedClusterName() != "":
		return replicasOfCluster
	}
	return 1
}

// electTime bounds the election of leaders in a cluster, makeTime one try. Of two processes that create the same
// stream at once, one gets no answer and finds the stream in its next try.
const (
	electTime = 3 * time.Minute
	makeTime  = 5 * time.Second
)

func (h *Hub) prepare(ctx context.Context, replicas int) error {
	for end := time.Now().Add(electTime); ; {
		try, cancel := context.WithTimeout(ctx, makeTime)
		err := h.make(try, replicas)
		cancel()
		if err == nil || ctx.Err() != nil || !electing(err) || time.Now().After(end) {
			return err
		}
		h.log.Warn("NATS is not ready to keep the store of the service; trying again", "error", err)
		// A random pause separates processes that have started together.
		if err := pace.Pause(ctx, 500*time.Millisecond+rand.N(2*time.Second)); err != nil {
			return err
		}
	}
}

// electing reports an error that passes when a cluster has elected its leaders.
func electing(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, nats.ErrNoResponders) ||
		errors.As(err, &api) && (api.ErrorCode == errNoPeers || api.ErrorCode == errNotReady)
}

func few(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == errNoPeers || api.ErrorCode == errNoCluster)
}

// Error codes of NATS (nats-server, errors.json: JSClusterNoPeersErrF, JSClusterNotAvailErr,
// JSStreamReplicasNotSupportedErr, JSStreamWrongLastSequenceConstantErr).
const (
	errNoPeers       jetstream.ErrorCode = 10005
	errNotReady      jetstream.ErrorCode = 10008
	errNoCluster     jetstream.ErrorCode = 10074
	errWrongRevision jetstream.ErrorCode = 10164 // does not name the right one
)

func (h *Hub) make(ctx context.Context, replicas int) error {
	for _, b := range h.buckets() {
		b.Replicas = replicas
		kv, err := h.js.CreateOrUpdateKeyValue(ctx, b.KeyValueConfig)
		if err != nil {
			return fmt.Errorf("bucket %s: %w", b.Bucket, err)
		}
		*b.kv = kv
	}
	for _, s := range h.kept() {
		s.Replicas, s.Discard = replicas, jetstream.DiscardOld
		stream, err := h.js.CreateOrUpdateStream(ctx, s.StreamConfig)
		if err != nil {
			return fmt.Errorf("stream %s: %w", s.Name, err)
		}
		if s.stream != nil {
			*s.stream = stream
		}
	}
	return nil
}

type bucket struct {
	kv *jetstream.KeyValue
	jetstream.KeyValueConfig
}

func (h *Hub) buckets() []bucket {
	of := func(kv *jetstream.KeyValue, name, description string, bytes int64) bucket {
		return bucket{kv, jetstream.KeyValueConfig{Bucket: name, Description: description, MaxBytes: bytes}}
	}
	ending := func(b bucket, ttl, marker time.Duration) bucket {
		b.TTL, b.LimitMarkerTTL = ttl, marker
		return b
	}
	v := &h.Verifications
	return []bucket{
		of(&h.Jobs.definitions, bucketJobs, "what jobs there are to be", 512<<20),
		ending(of(&h.Leases.kv, bucketLeases, "who runs what", 16<<20), h.Leases.ttl, time.Minute),
		of(&h.Jobs.reports, bucketReports, "how jobs stand", 512<<20),
		ending(of(&h.Workers.present, bucketWorkers, "which workers there are", 16<<20), h.Leases.ttl, time.Minute),
		of(&h.Workers.drains, bucketDrains, "which workers are to give back what they have", 16<<20),
		of(&h.formats.KeyValue, bucketFormat, "the newest format of what processes store", 1<<20),
		ending(of(&v.kv, bucketVerifications, "what is to be verified, and how that stands", 64<<20), 0, markerTTL),
		ending(of(&v.findings, bucketFindings, "what verifications have found", 512<<20), 0, markerTTL),
		of(&h.Alerts.kv, bucketAlerts, "what operators should know of", 32<<20),
	}
}

type kept struct {
	stream *jetstream.Stream
	jetstream.StreamConfig
}

func (h *Hub) kept() []kept {
	list := []kept{{&h.Audit.stream, jetstream.StreamConfig{Name: streamAudit, Description: "who has changed what",
		Subjects: []string{subjectAudit + ".>"}, MaxBytes: 256 << 20, DenyDelete: true, AllowDirect: true}}}
	for _, s := range h.Records.points {
		list = append(list, kept{nil, jetstream.StreamConfig{Name: s.stream, Description: "figures of jobs over time",
			Subjects: []string{s.subject + ".>"}, MaxBytes: s.bytes, MaxAge: keepRecords, AllowDirect: true}})
	}
	return append(list,
		kept{&h.Records.log.stream, jetstream.StreamConfig{Name: streamEvents, Description: "what happened to jobs",
			Subjects: []string{subjectEvents + ".>"}, MaxBytes: 512 << 20, MaxMsgsPerSubject: maxOfJob, MaxAge: keepRecords,
			AllowDirect: true}},
		kept{nil, jetstream.StreamConfig{Name: streamNotices, Description: "notices for receivers of alerts",
			Subjects: []string{subjectNotices + ".>"}, Retention: jetstream.WorkQueuePolicy, MaxBytes: 32 << 20,
			MaxAge: noticeAge, Duplicates: noticeAge}})
}

// Lease returns how long a silent worker keeps its jobs.
func (h *Hub) Lease() time.Duration { return h.Leases.ttl }

// identity changes when the store is recreated.
func (h *Hub) identity(ctx context.Context) (string, error) {
	id := ""
	for _, bucket := range []string{bucketJobs, bucketReports, bucketLeases, bucketWorkers, bucketVerifications,
		bucketFindings} {
		s, err := h.js.Stream(ctx, "KV_"+bucket) // NATS ADR-8: the stream of a bucket
		if err != nil {
			return "", fmt.Errorf("look at bucket %s: %w", bucket, err)
		}
		id += s.CachedInfo().Created.String()
	}
	return id, nil
}

func (h *Hub) Close() { h.conn.Close() }
