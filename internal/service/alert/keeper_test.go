package alert

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/test/hubtest"
)

// inbox is a webhook that takes what comes, or refuses it.
type inbox struct {
	t      *testing.T
	server *httptest.Server
	came   chan struct{}

	mu     sync.Mutex
	got    []string // event and kind, in order
	ids    []string // deliveries, refused ones too
	status func(n int) int
	wrong  []string
}

const hookSecret = "a secret that nobody sees"

func newInbox(t *testing.T) *inbox {
	b := &inbox{t: t, came: make(chan struct{}, 1000), status: func(int) int { return http.StatusNoContent }}
	b.server = httptest.NewServer(b)
	t.Cleanup(b.server.Close)
	return b
}

func (b *inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	var n Notice
	err := json.Unmarshal(raw, &n)
	at, _ := strconv.ParseInt(r.Header.Get(HeaderTimestamp), 10, 64)
	b.mu.Lock()
	defer b.mu.Unlock()
	if sum := Sign([]byte(hookSecret), r.Header.Get(HeaderTimestamp), raw); err != nil ||
		sum != r.Header.Get(HeaderSignature) || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
		b.wrong = append(b.wrong, fmt.Sprint(err, r.Header))
	}
	b.ids = append(b.ids, r.Header.Get(HeaderDelivery))
	code := b.status(len(b.ids))
	w.WriteHeader(code)
	if code < 300 {
		b.got = append(b.got, string(n.Event)+" "+string(n.Kind)+" "+n.Job)
	}
	b.came <- struct{}{}
}

// await waits until n notices were taken, and checks that they are these.
func (b *inbox) await(want ...string) {
	b.t.Helper()
	for {
		b.mu.Lock()
		got, wrong := slices.Clone(b.got), b.wrong
		b.mu.Unlock()
		if len(wrong) > 0 {
			b.t.Fatalf("wrong requests: %v", wrong)
		}
		if len(got) >= len(want) {
			if !slices.Equal(got, want) {
				b.t.Fatalf("got %q, want %q", got, want)
			}
			return
		}
		select {
		case <-b.came:
		case <-time.After(time.Minute):
			b.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func (b *inbox) settings() *Settings {
	s := Defaults()
	s.Receivers = []Receiver{{Name: "ops", Jobs: []string{"shop-*"}, send: newWebhook(b.server.URL, []byte(hookSecret))}}
	return s
}

// run has a keeper run until the test ends, or what it returns is called.
func run(t *testing.T, h *hub.Hub, s *Settings) (end func()) {
	t.Helper()
	k := New(Options{Hub: h, View: hubtest.Watch(t, h), Settings: s, Every: 20 * time.Millisecond,
		Settle: time.Millisecond, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = k.Run(ctx) })
	end = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(end)
	return end
}

// fail makes a job that has failed, mend has it tried again.
func fail(t *testing.T, h *hub.Hub, name string) {
	t.Helper()
	d := &service.Definition{Name: name, UID: "u-" + name}
	if err := h.Jobs.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if err := h.Jobs.Report(t.Context(), name, &service.Report{UID: d.UID, Run: "r", State: service.Failed,
		Error: "it <b>broke</b>\x1b[31m\u202e\r\nBcc: x@y"}); err != nil {
		t.Fatal(err)
	}
}

func mend(t *testing.T, h *hub.Hub, name string) {
	t.Helper()
	if _, err := h.Jobs.Change(t.Context(), name,
		func(d *service.Definition) error { d.Desired.Try++; return nil }); err != nil {
		t.Fatal(err)
	}
}

// until waits until the alerts that a view has are as they should be.
func until(t *testing.T, v *hub.View, holds func(present, past []service.Alert) bool) {
	t.Helper()
	for {
		changed, _ := v.Changed()
		if holds(v.Alerts(), v.PastAlerts()) {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatalf("alerts %+v, past %+v", v.Alerts(), v.PastAlerts())
		}
	}
}

// TestOnce: two keepers and one that begins anew tell of an occurrence once, and once
// that it is over; of jobs of others the receiver does not hear.
func TestOnce(t *testing.T) {
	h, v := hubtest.Start(t, time.Minute)
	b := newInbox(t)
	end1, end2 := run(t, h, b.settings()), run(t, h, b.settings())
	for i := range 20 {
		fail(t, h, fmt.Sprintf("other-%d", i))
	}
	fail(t, h, "shop-1")
	b.await("fired failed shop-1")
	until(t, v, func(present, _ []service.Alert) bool {
		return len(present) == 21 && !slices.ContainsFunc(present, func(a service.Alert) bool { return !a.Notified })
	})
	end1()
	end2()
	run(t, h, b.settings())
	run(t, h, b.settings())
	mend(t, h, "shop-1")
	b.await("fired failed shop-1", "resolved failed shop-1")
	until(t, v, func(present, past []service.Alert) bool {
		return len(present) == 20 && len(past) == 1 && past[0].Job == "shop-1"
	})
	fail(t, h, "shop-2")
	b.await("fired failed shop-1", "resolved failed shop-1", "fired failed shop-2")
	seen := map[string]bool{}
	for _, id := range b.ids {
		if seen[id] {
			t.Errorf("delivery %s came twice", id)
		}
		seen[id] = true
	}
}

// TestLateReceiver: notices come in order once a receiver answers again; what it refuses
// for good is left out.
func TestLateReceiver(t *testing.T) {
	h, v := hubtest.Start(t, time.Minute)
	b := newInbox(t)
	b.status = func(n int) int {
		switch n {
		case 1, 2:
			return http.StatusBadGateway
		case 4:
			return http.StatusGone
		}
		return http.StatusOK
	}
	run(t, h, b.settings())
	fail(t, h, "shop-1")
	b.await("fired failed shop-1")
	mend(t, h, "shop-1") // refused
	until(t, v, func(_, past []service.Alert) bool { return len(past) == 1 })
	fail(t, h, "shop-2")
	b.await("fired failed shop-1", "fired failed shop-2")
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.ids) != 5 || b.ids[0] != b.ids[1] || b.ids[1] != b.ids[2] {
		t.Errorf("deliveries %q", b.ids)
	}
}

// TestKilledBeforeTelling: what a process has stored and not told of, another tells.
func TestKilledBeforeTelling(t *testing.T) {
	h, v := hubtest.Start(t, time.Minute)
	b := newInbox(t)
	fail(t, h, "shop-1")
	a := &service.Alert{ID: "x", Kind: service.AlertFailed, Job: "shop-1", UID: "u-shop-1", Text: "it failed",
		FiredAt: time.Now().Add(-time.Hour)}
	if err := h.Alerts.Set(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	run(t, h, b.settings())
	b.await("fired failed shop-1")
	until(t, v, func(present, _ []service.Alert) bool {
		return len(present) == 1 && present[0].Notified && present[0].ID == "x"
	})
}

// TestNoticeIsPlain: what servers and people have written acts on no reader.
func TestNoticeIsPlain(t *testing.T) {
	n := Notice{Fired, (&service.Alert{Text: "a\r\nBcc: x\x1b[31m\u202e" + strings.Repeat("ü", maxText)}).Shown(plain)}
	if !strings.HasPrefix(n.Text, "a  Bcc: x\ufffd[31m\ufffdü") || len(n.Text) > maxText+len("…") ||
		!strings.HasSuffix(n.Text, "ü…") {
		t.Errorf("%d %.60q", len(n.Text), n.Text)
	}
}

// TestFaster: of two keepers that have found the same at one time, one tells of it: when
// it fires, and when it is over.
func TestFaster(t *testing.T) {
	h, v := hubtest.Start(t, time.Minute)
	b := newInbox(t)
	keepers := []*Keeper{}
	for range 2 {
		keepers = append(keepers, New(Options{Hub: h, View: v, Settings: b.settings(), Log: slog.New(slog.DiscardHandler)}))
	}
	found := service.Alert{Kind: service.AlertFailed, Job: "shop-1", UID: "u", FiredAt: time.Now()}
	both := func(c change) {
		for i, k := range keepers {
			if c.Firing() {
				c.ID = fmt.Sprint("by", i)
			}
			if err := k.store(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	both(change{Alert: found})
	until(t, v, func(present, _ []service.Alert) bool { return len(present) == 1 && present[0].Notified })
	both(change{Alert: over(v.Alerts()[0], time.Now(), "mended")})
	until(t, v, func(present, past []service.Alert) bool { return len(present) == 0 && len(past) == 1 })
	run(t, h, b.settings())
	b.await("fired failed shop-1", "resolved failed shop-1")
}
