package assign

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/transform"
)

// Joining says who assists, and whom.
type Joining struct {
	Worker, Version string
	Ask             Ask // the owner
	Rules           transform.Config
	Log             *slog.Logger
	// Idle is how long an assistant stays while no part waits; 0 is until there are no more.
	Idle time.Duration
}

// Assistant is one process' part in work that another one owns. T are the terms of the work, U is a
// part. Its methods are safe for concurrent use.
type Assistant[T, U any] struct {
	Joining
	// Made is what the rules are.
	Made  *transform.Set
	Token string
	Lease time.Duration
	Terms T

	sets   [2]bson.ObjectID // of source and target
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	heard time.Time // when the last request was sent that was answered
}

// Assist joins the owner, has do work, and leaves. Nothing that do began goes on when it returns. An
// error says why the assistant has ended early, or has not begun; the owner knows it, too, if it
// could be reached.
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
	a.Token, a.Lease, a.Terms = r.Terms.Token, r.Terms.Lease, r.Terms.Work
	a.sets = [...]bson.ObjectID{r.Terms.SourceSet, r.Terms.TargetSet}
	beating, stop := context.WithCancel(ctx)
	var beats sync.WaitGroup
	beats.Go(func() { a.beat(beating) })
	if keys.Mark(a.Made, a.Token) != r.Terms.Rules {
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

// Decline tells the owner of some work why a worker cannot assist.
func Decline(ctx context.Context, worker string, why error, ask Ask) error {
	raw, err := bson.Marshal(request[any]{Kind: decline, Worker: worker, Why: mongo.Brief(why)})
	if err == nil {
		_, err = ask(ctx, raw)
	}
	return err
}

// CheckClusters fails for other clusters than those of the owner.
func (a *Assistant[T, U]) CheckClusters(source, target *mongo.Cluster) error {
	if source.Info.SetID == a.sets[0] && target.Info.SetID == a.sets[1] {
		return nil
	}
	return mongo.WithHint(errors.New("its connection strings lead to other clusters than those of the owner"),
		"give this worker the same ones")
}

// Lost fails when the owner may have revoked this assistant.
func (a *Assistant[T, U]) Lost() error {
	a.mu.Lock()
	silent := time.Since(a.heard)
	a.mu.Unlock()
	if silent < a.Lease*4/5 {
		return nil
	}
	return mongo.Retry(fmt.Sprintf("the owner has said nothing for %s", silent.Round(time.Second)), nil, "")
}

// beat reports that this process lives, and ends the work when the owner may have revoked it.
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

// Report sends what has become of parts. again says that it has to be sent again.
func (a *Assistant[T, U]) Report(ctx context.Context, what any) (again bool, err error) {
	r, err := a.ask(ctx, request[any]{Kind: report, Token: a.Token, Report: what})
	return r.More, err
}

// leave returns what is left.
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

// ask sends one request, and notes that the owner has answered.
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

// Group gives parts of one group. First comes before all else.
type Group[T, U any] struct {
	*Assistant[T, U]
	name  string
	turn  chan struct{} // full while somebody asks
	first *U            // that nobody has yet; in turn
}

// Group is that of a name.
func (a *Assistant[T, U]) Group(name string) *Group[T, U] {
	return &Group[T, U]{Assistant: a, name: name, turn: make(chan struct{}, 1)}
}

// First waits for a part, which it leaves to Next.
func (g *Group[T, U]) First(ctx context.Context) (*U, error) {
	first, err := g.Next(ctx)
	g.first = first
	return first, err
}

// NoneNow is how long an assistant waits before it asks again.
const NoneNow = 200 * time.Millisecond

// Next waits for a part. Nil says that there are no more. One goroutine asks at a time: the others
// would hear the same.
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
