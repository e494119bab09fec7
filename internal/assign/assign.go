// Package assign shares one piece of work among processes. Its Owner assigns parts, for which an
// Assistant asks by requests, one after the other. What a part and its report are, the work knows
// (Work, and the types of an assistant).
//
// The owner revokes an assistant that sends nothing for the time of a lease, or that joins again.
// Then it refuses later requests, and returns the parts once nothing of the assistant can arrive. An
// assistant without answers ends before that. Owner and assistant have the same version, clusters,
// rules and keys.
package assign

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/transform"
)

// Offer is how assistants reach the owner of some work.
type Offer struct {
	// Version is the program's.
	Version string
	// Lease is how long a silent assistant keeps its parts.
	Lease time.Duration
	// Serve answers requests of assistants concurrently until ctx ends. It returns when no request
	// is being answered.
	Serve func(ctx context.Context, answer func(ctx context.Context, request []byte) (reply []byte)) error
}

// Ask sends a request to the owner, and returns its reply.
type Ask func(ctx context.Context, request []byte) (reply []byte, err error)

// Figures are what one worker has done of the work.
type Figures struct {
	Worker string `json:"worker"`
	Docs   int64  `json:"docs"`
	Bytes  int64  `json:"bytes"`
	Parts  int    `json:"slices"` // that it has now
	// Why is why the worker has ended, or cannot assist.
	Why string `json:"why,omitempty"`
}

const (
	join    = "join"    // to assist from now on
	next    = "next"    // for a part
	report  = "report"  // to take what has become of parts, or just that the assistant lives
	leave   = "leave"   // to return all parts
	decline = "decline" // to note why a worker does not assist
)

// mostMessage bounds a request and a reply in bytes. NATS takes a megabyte.
const mostMessage = 512 << 10

// request is what an assistant sends; R is what it reports.
type request[R any] struct {
	Kind    string `bson:"kind"`
	Worker  string `bson:"worker,omitempty"`  // join, decline
	Version string `bson:"version,omitempty"` // join
	Token   string `bson:"token,omitempty"`   // all others
	Group   string `bson:"group,omitempty"`   // next; of the parts
	Report  R      `bson:"report,omitempty"`
	// Why is the reason to leave or decline. Alone says that it is in the data.
	Why   string `bson:"why,omitempty"`
	Alone bool   `bson:"alone,omitempty"`
}

// reply is the owner's; T are the terms of the work, U is a part as the assistant needs it.
type reply[T, U any] struct {
	// Refused is why the assistant has to end.
	Refused string    `bson:"refused,omitempty"`
	Terms   *terms[T] `bson:"terms,omitempty"` // join
	Part    U         `bson:"part,omitempty"`  // next; none: none waits
	// More says that there may be a part later, or that the report is to be repeated.
	More bool `bson:"more,omitempty"`
}

type terms[T any] struct {
	Token     string        `bson:"token"` // names the assistant; it is never given again
	Lease     time.Duration `bson:"lease"`
	SourceSet bson.ObjectID `bson:"sourceSet"`
	TargetSet bson.ObjectID `bson:"targetSet"`
	Rules     string        `bson:"rules"` // see transform.Keys
	Terms     T             `bson:"work"`
}

// ErrRefused reports that the owner refuses an assistant.
var ErrRefused = errors.New("the owner of the work refuses")

// ErrUnfit reports what keeps a process from doing any part.
var ErrUnfit = errors.New("this worker cannot assist")

func Refusal(why string) error { return fmt.Errorf("%w: %s", ErrRefused, strings.TrimSpace(why)) }

// Joining describes an assistant and its owner.
type Joining struct {
	Worker, Version string
	Ask             Ask // the owner
	Rules           transform.Config
	Log             *slog.Logger
	// Idle is how long an assistant stays while no part waits; 0 is until there are no more.
	Idle time.Duration
}

// Assistant is one process's part in work of another. T are the terms of the work, U is a part. Its
// methods are safe for concurrent use.
type Assistant[T, U any] struct {
	Joining
	terms[T]
	Made *transform.Set // of the rules

	cancel context.CancelCauseFunc

	mu    sync.Mutex
	heard time.Time // when the last request was sent that was answered
}

// Assist joins the owner, calls do, and leaves. Nothing that do began goes on when it returns. An
// error says why the assistant ended early; the owner gets it, too, if it can be reached.
func Assist[T, U any](ctx context.Context, j Joining, do func(ctx context.Context, a *Assistant[T, U]) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &Assistant[T, U]{Joining: j, cancel: cancel}
	var keys transform.Keys
	a.Joining.Rules.Secret = keys.Remember(a.Joining.Rules.Secret)
	var err error
	if a.Made, err = transform.New(a.Joining.Rules); err != nil {
		return errors.Join(err, Decline(ctx, j.Worker, err, j.Ask))
	}
	r, err := a.ask(ctx, request[any]{Kind: join, Worker: j.Worker, Version: j.Version})
	if err != nil {
		return err
	}
	if r.Terms == nil {
		return Refusal("its reply has no terms")
	}
	a.terms = *r.Terms
	beating, stop := context.WithCancel(ctx)
	var beats sync.WaitGroup
	beats.Go(func() { a.beat(beating) })
	if keys.Mark(a.Made, a.Token) != a.terms.Rules {
		err = fmt.Errorf("%w: its rules, or the keys that they mask by, are others than those of the owner", ErrUnfit)
	} else {
		err = do(ctx, a)
	}
	stop()
	beats.Wait()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	a.leave(ctx, err)
	return err
}

// Decline tells the owner why a worker cannot assist.
func Decline(ctx context.Context, worker string, why error, ask Ask) error {
	raw, err := bson.Marshal(request[any]{Kind: decline, Worker: worker, Why: mongo.Brief(why)})
	if err == nil {
		_, err = ask(ctx, raw)
	}
	return err
}

// CheckClusters fails if these are not the owner's clusters.
func (a *Assistant[T, U]) CheckClusters(source, target *mongo.Cluster) error {
	if source.Info.SetID == a.SourceSet && target.Info.SetID == a.TargetSet {
		return nil
	}
	return mongo.WithHint(errors.New("its connection strings lead to other clusters than those of the owner"),
		"give this worker the same ones")
}

// Lost fails if the owner may have revoked this assistant.
func (a *Assistant[T, U]) Lost() error {
	a.mu.Lock()
	silent := time.Since(a.heard)
	a.mu.Unlock()
	if silent < a.Lease*4/5 {
		return nil
	}
	return mongo.Retry(fmt.Sprintf("the owner has said nothing for %s", silent.Round(time.Second)), nil, "")
}

func (a *Assistant[T, U]) beat(ctx context.Context) {
	for pace.Pause(ctx, a.Lease/10) == nil {
		_, err := a.Report(ctx, nil)
		if err != nil && !errors.Is(err, ErrRefused) {
			err = a.Lost()
		}
		if err != nil && ctx.Err() == nil {
			a.cancel(err)
			return
		}
	}
}

// Report reports on parts; again means that the report is to be repeated.
func (a *Assistant[T, U]) Report(ctx context.Context, what any) (again bool, err error) {
	r, err := a.ask(ctx, request[any]{Kind: report, Token: a.Token, Report: what})
	return r.More, err
}

func (a *Assistant[T, U]) leave(ctx context.Context, why error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	r := request[any]{Kind: leave, Token: a.Token}
	if why != nil {
		class := mongo.Classify(why)
		r.Why = mongo.Brief(why)
		r.Alone = class != mongo.ClassRetry && class != mongo.ClassCanceled &&
			!errors.Is(why, ErrRefused) && !errors.Is(why, ErrUnfit)
	}
	if _, err := a.ask(ctx, r); err != nil {
		a.Log.Debug("the owner does not hear that this worker leaves", "error", err)
	}
}

func (a *Assistant[T, U]) ask(ctx context.Context, what request[any]) (r reply[T, *U], err error) {
	const timeout = 5 * time.Second
	raw, err := bson.Marshal(what)
	if err != nil {
		return r, fmt.Errorf("write a request to the owner: %w", err)
	}
	if len(raw) > mostMessage {
		return r, fmt.Errorf("a request to the owner takes %d bytes, more than %d: its _ids are large", len(raw), mostMessage)
	}
	began := time.Now()
	short, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if raw, err = a.Joining.Ask(short, raw); err != nil {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		return r, mongo.Retry("ask the owner ("+what.Kind+")", err, "")
	}
	if err := bson.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("read the reply of the owner: %w", err)
	}
	if r.Refused != "" {
		return r, Refusal(r.Refused)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if began.After(a.heard) {
		a.heard = began
	}
	return r, nil
}

// Group returns parts of one group.
type Group[T, U any] struct {
	*Assistant[T, U]
	name  string
	turn  chan struct{} // full while somebody asks
	first *U            // that nobody has yet; in turn
}

func (a *Assistant[T, U]) Group(name string) *Group[T, U] {
	return &Group[T, U]{Assistant: a, name: name, turn: make(chan struct{}, 1)}
}

// First waits for a part, and leaves it to Next.
func (g *Group[T, U]) First(ctx context.Context) (*U, error) {
	first, err := g.Next(ctx)
	g.first = first
	return first, err
}

// NoneNow is how long an assistant waits before it asks again.
const NoneNow = 200 * time.Millisecond

// Next waits for a part; nil means that there are no more. One goroutine asks at a time: others
// would get the same reply.
func (g *Group[T, U]) Next(ctx context.Context) (*U, error) {
	began := time.Now()
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-g.turn }()
	if first := g.first; first != nil {
		g.first = nil
		return first, nil
	}
	for {
		r, err := g.ask(ctx, request[any]{Kind: next, Token: g.Token, Group: g.name})
		if err != nil || r.Part != nil || !r.More || g.Idle > 0 && time.Since(began) > g.Idle {
			return r.Part, err
		}
		if err := pace.Pause(ctx, NoneNow); err != nil {
			return nil, err
		}
	}
}
