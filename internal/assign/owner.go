package assign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

const (
	mostMembers = 64
	mostParts   = 16 * mostMembers
)

// Part is a part of the work that an assistant has.
type Part interface {
	comparable
	// ID names the part in the work.
	ID() string
	// Unit returns what the assistant gets.
	Unit() any
	// Return returns the part once nothing of it is on its way. With alone, the owner does the rest
	// of what it belongs to.
	Return(alone bool)
}

// Work is what an owner assigns parts of. Several goroutines call its methods.
type Work[P Part, R any] interface {
	// Closed returns why nobody may join now, "" if they may.
	Closed() string
	// Terms returns the terms of the work for an assistant that joins.
	Terms() any
	// Waiting returns how many parts can be assigned now.
	Waiting() int
	// Next takes a waiting part of a group, nil for none; more says that there may be one later.
	Next(group string) (p P, more bool)
	// Report takes an assistant's report; again requests it again. An error is a refusal.
	Report(ctx context.Context, m *Member[P], r R) (again bool, err error)
	// Note publishes, before it returns, that only those with these tokens take part.
	Note(ctx context.Context, tokens []string) error
	// Revoke returns once nothing of a member that is no longer noted can arrive; nil is all.
	Revoke(ctx context.Context, m *Member[P]) error
}

// Owner assigns parts of its work to assistants. Its methods are safe for concurrent use.
type Owner[P Part, R any] struct {
	offer  Offer
	common Common
	work   Work[P, R]
	log    *slog.Logger

	ctx     context.Context // of the work
	serving context.Context // while assistants are answered
	fail    context.CancelCauseFunc
	ending  sync.WaitGroup // what Go began
	noting  sync.Mutex     // one note at a time

	mu      sync.Mutex
	joined  bool                  // somebody has
	members map[string]*Member[P] // by token
	figures map[string]*Figures   // by worker
}

// Common is what the owner checks assistants against.
type Common struct {
	Source, Target *mongo.Cluster
	Rules          *transform.Set
	Keys           *transform.Keys // of the rules
}

// Member is an assistant that has joined.
type Member[P Part] struct {
	Token, Worker string

	mu      *sync.Mutex // the owner's
	heard   time.Time
	parts   map[string]P
	ended   bool // nothing is taken from it any more
	figures *Figures
}

// NewOwner makes an owner of figures of earlier runs, by worker, which it changes.
func NewOwner[P Part, R any](o Offer, c Common, work Work[P, R], log *slog.Logger,
	figures map[string]*Figures) *Owner[P, R] {
	return &Owner[P, R]{offer: o, common: c, work: work, log: log, members: map[string]*Member[P]{}, figures: figures}
}

// Run calls do, while assistants do parts. After it returns nil, nothing of an assistant arrives.
// An error of Fail ends the work, and is returned.
func (o *Owner[P, R]) Run(ctx context.Context, do func(context.Context) error) error {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	serving, stop := context.WithCancel(running)
	defer stop()
	o.mu.Lock()
	o.ctx, o.serving, o.fail = running, serving, cancel
	o.mu.Unlock()
	o.partless()
	defer o.partless()
	var serve sync.WaitGroup
	serve.Go(func() {
		if err := o.offer.Serve(serving, o.answer); err != nil && serving.Err() == nil {
			o.log.Warn("no parts of the work can be assigned to other workers", "error", err)
		}
	})
	serve.Go(func() { o.watch(serving) })
	err := do(running)
	stop()
	serve.Wait()
	if err != nil {
		cancel(err)
	}
	o.ending.Wait()
	if err == nil {
		o.mu.Lock()
		joined := o.joined
		clear(o.members)
		o.mu.Unlock()
		if joined { // nothing of them may arrive any more
			err = o.revoke(running, nil)
		}
	}
	if err != nil && running.Err() != nil {
		err = context.Cause(running)
	}
	return err
}

func (o *Owner[P, R]) partless() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.figures {
		f.Parts = 0
	}
}

// Fail ends the work that runs.
func (o *Owner[P, R]) Fail(err error) { o.fail(err) }

// Go runs what Run waits for. ctx ends when assistants get no more answers.
func (o *Owner[P, R]) Go(do func(ctx context.Context)) {
	o.ending.Go(func() { do(o.serving) })
}

func (o *Owner[P, R]) revoke(ctx context.Context, m *Member[P]) error {
	if err := o.note(ctx); err != nil {
		return err
	}
	return o.work.Revoke(ctx, m)
}

func (o *Owner[P, R]) note(ctx context.Context) error {
	o.noting.Lock()
	defer o.noting.Unlock()
	tokens := []string{}
	o.mu.Lock()
	for token, m := range o.members {
		if !m.ended {
			tokens = append(tokens, token)
		}
	}
	o.mu.Unlock()
	slices.Sort(tokens)
	return o.work.Note(ctx, tokens)
}

func (o *Owner[P, R]) watch(ctx context.Context) {
	for pace.Pause(ctx, o.offer.Lease/10) == nil {
		o.mu.Lock()
		silent := slices.Collect(maps.Values(o.members))
		silent = slices.DeleteFunc(silent, func(m *Member[P]) bool { return m.ended || time.Since(m.heard) < o.offer.Lease })
		o.mu.Unlock()
		for _, m := range silent {
			o.end(m, fmt.Sprintf("nothing was heard of it for %s", o.offer.Lease), false)
		}
	}
}

func (o *Owner[P, R]) end(m *Member[P], why string, alone bool) {
	o.mu.Lock()
	first := !m.ended
	m.ended = true
	m.figures.Why = why
	undone := len(m.parts)
	o.mu.Unlock()
	if !first {
		return
	}
	if why != "" {
		o.log.Warn("a worker that did a part has ended", "worker", m.Worker, "why", why, "parts", undone)
	}
	o.ending.Go(func() {
		if err := o.revoke(o.ctx, m); err != nil {
			o.fail(err)
			return
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, p := range m.parts {
			p.Return(alone)
		}
		m.figures.Parts -= len(m.parts)
		clear(m.parts)
		delete(o.members, m.Token)
	})
}

func (o *Owner[P, R]) answer(ctx context.Context, raw []byte) []byte {
	var a request[R]
	var r reply[any, any]
	if err := bson.Unmarshal(raw, &a); err != nil {
		r.Refused = "the request cannot be read"
	} else {
		r = o.reply(ctx, &a)
	}
	raw, err := bson.Marshal(r)
	if err != nil {
		o.log.Warn("a reply to a worker cannot be written", "error", err)
	}
	return raw
}

var errRevoked = errors.New("the owner of the work revoked this worker")

func refused(err error) reply[any, any] { return reply[any, any]{Refused: err.Error()} }

func (o *Owner[P, R]) reply(ctx context.Context, a *request[R]) reply[any, any] {
	switch a.Kind {
	case join:
		return o.join(a)
	case decline:
		o.declined(a.Worker, a.Why)
		return reply[any, any]{}
	}
	o.mu.Lock()
	m := o.members[a.Token]
	known := m != nil && !m.ended
	if known {
		m.heard = time.Now()
	}
	o.mu.Unlock()
	if !known {
		return refused(errRevoked)
	}
	switch a.Kind {
	case next:
		return o.next(m, a.Group)
	case report:
		again, err := o.work.Report(ctx, m, a.Report)
		if err != nil {
			return refused(err)
		}
		return reply[any, any]{More: again}
	case leave:
		o.end(m, a.Why, a.Alone)
		return reply[any, any]{}
	}
	return refused(errors.New("there is no request " + a.Kind))
}

func (o *Owner[P, R]) join(a *request[R]) reply[any, any] {
	if a.Version != o.offer.Version {
		why := fmt.Sprintf("it is of version %s, the owner of version %s", a.Version, o.offer.Version)
		o.declined(a.Worker, why)
		return refused(errors.New(why))
	}
	if why := o.work.Closed(); why != "" {
		return refused(errors.New(why))
	}
	m := &Member[P]{Token: state.NewRun(), Worker: a.Worker, mu: &o.mu, heard: time.Now(), parts: map[string]P{}}
	o.mu.Lock()
	var before []*Member[P]
	for _, other := range o.members {
		if other.Worker == a.Worker {
			before = append(before, other)
		}
	}
	full := len(o.members) >= mostMembers
	if !full {
		o.joined = true
		o.members[m.Token] = m
		m.figures = o.figuresOf(a.Worker)
		m.figures.Why = ""
	}
	o.mu.Unlock()
	for _, other := range before {
		o.end(other, "it has begun again", false)
	}
	if full {
		return refused(fmt.Errorf("%d workers assist already", mostMembers))
	}
	if err := o.note(o.ctx); err != nil { // not while it is answered: that all is done is no failure
		o.fail(err)
		return refused(errors.New("the owner cannot reach the target"))
	}
	o.log.Info("another worker does a part", "worker", a.Worker)
	c := &o.common
	return reply[any, any]{Terms: &terms[any]{Token: m.Token, Lease: o.offer.Lease, Rules: c.Keys.Mark(c.Rules, m.Token),
		SourceSet: c.Source.Info.SetID, TargetSet: c.Target.Info.SetID, Terms: o.work.Terms()}}
}

func (o *Owner[P, R]) declined(worker, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.figures) >= mostMembers && o.figures[worker] == nil {
		return
	}
	if f := o.figuresOf(worker); f.Why != why {
		f.Why = why
		o.log.Warn("a worker cannot do a part", "worker", worker, "why", why)
	}
}

// figuresOf is called with mu locked.
func (o *Owner[P, R]) figuresOf(worker string) *Figures {
	if o.figures[worker] == nil {
		o.figures[worker] = &Figures{Worker: worker}
	}
	return o.figures[worker]
}

// Status returns how many parts wait for assistants, and the figures of workers, by name.
func (o *Owner[P, R]) Status() (waiting int, list []Figures) {
	o.mu.Lock()
	serving := o.serving
	for _, f := range o.figures {
		list = append(list, *f)
	}
	o.mu.Unlock()
	slices.SortFunc(list, func(a, b Figures) int { return cmp.Compare(a.Worker, b.Worker) })
	if serving != nil && serving.Err() == nil && o.work.Closed() == "" { // else nobody would be answered
		waiting = o.work.Waiting()
	}
	return waiting, list
}

func (o *Owner[P, R]) next(m *Member[P], group string) reply[any, any] {
	assigned := 0
	o.mu.Lock()
	for _, m := range o.members {
		assigned += len(m.parts)
	}
	o.mu.Unlock()
	if assigned >= mostParts || o.work.Closed() != "" {
		return reply[any, any]{}
	}
	for {
		p, more := o.work.Next(group)
		var none P
		if p == none {
			return reply[any, any]{More: more}
		}
		r := reply[any, any]{Part: p.Unit()}
		if raw, err := bson.Marshal(r); err != nil || len(raw) > mostMessage/2 { // what is reported of it may grow
			p.Return(true)
			continue
		}
		err := m.Update(func(parts map[string]P, _ *Figures) error {
			parts[p.ID()] = p
			return nil
		})
		if err != nil {
			p.Return(false)
			return refused(err)
		}
		return r
	}
}

// Update changes the member's parts, by id, and its figures except their number. It fails once the
// member is revoked.
func (m *Member[P]) Update(do func(parts map[string]P, f *Figures) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return errRevoked
	}
	before := len(m.parts)
	err := do(m.parts, m.figures)
	m.figures.Parts += len(m.parts) - before
	return err
}
