package seed

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/test/kit"
)

// A puller that was killed keeps nobody waiting for as long as a silent one.
func TestPullerThatWasCutIsNotWaitedFor(t *testing.T) {
	a := fakeAgent(t, fakeMember(t), AgentOptions{Idle: cutPart * time.Second}) // a second for who was cut
	gone, err := a.Join(t.Context())
	must(t, err)
	next, err := a.Join(t.Context())
	must(t, err)
	cut := errors.New("connection reset")
	q := ReadRequest{Round: gone.Round, Puller: gone.Puller, Path: "WiredTiger.wt", Have: make([]Sum, 1)}
	if err := a.Read(t.Context(), q, func(Block) error { return cut }); !errors.Is(err, cut) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := a.Freeze(ctx, next.Round, next.Puller); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Freeze(ctx, gone.Round, gone.Puller); !errors.Is(err, errNoRound) {
		t.Errorf("the one that is gone: %v", err)
	}
}

// A puller that is killed between two requests is noticed by the end of the one
// that it holds open.
func TestPullerThatIsGoneIsNoticed(t *testing.T) {
	// A minute, five seconds for who was cut.
	a := fakeAgent(t, fakeMember(t), AgentOptions{Idle: 5 * cutPart * time.Second})
	o := serve(t, a, "a token of some length", nil)
	c := client(t, o)
	gone, err := c.Join(t.Context())
	must(t, err)
	next, err := c.Join(t.Context())
	must(t, err)
	staying, kill := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Stay(staying, gone.Round, gone.Puller) }()
	r, err := a.round(gone.Round)
	must(t, err)
	state := func() (there, cut bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		p := r.pullers[gone.Puller]
		return p != nil && p.stays > 0, p == nil || p.cut
	}
	kit.Until(t, "the puller is there", func() bool { there, _ := state(); return there })
	kill()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	kit.Until(t, "the puller is noticed to be gone", func() bool { _, cut := state(); return cut })
	again, stop := context.WithCancel(t.Context()) // it was only the network
	go func() { ended <- c.Stay(again, gone.Round, gone.Puller) }()
	kit.Until(t, "the puller is back", func() bool { _, cut := state(); return !cut })
	stop()
	<-ended
	if _, err := c.Freeze(t.Context(), next.Round, next.Puller); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Freeze(t.Context(), gone.Round, gone.Puller); !errors.Is(err, errNoRound) {
		t.Errorf("the one that is gone: %v", err)
	}
}

// A freeze goes on when the request that it began with is cut, and its result is
// there for who comes back.
func TestFreezeOutlivesItsRequest(t *testing.T) {
	freezer := &changingFreezer{}
	a := fakeAgent(t, fakeMember(t), AgentOptions{Way: WayLock, Freezer: freezer})
	m, err := a.Join(t.Context())
	must(t, err)
	ctx, cut := context.WithCancel(t.Context())
	freezer.change = cut
	if _, err := a.Freeze(ctx, m.Round, m.Puller); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := a.Freeze(t.Context(), m.Round, m.Puller); err != nil || freezer.n != 1 {
		t.Errorf("%v after %d locks", err, freezer.n)
	}
}
