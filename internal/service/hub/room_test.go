package hub

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/workshop/lab"
)

// TestFullDisk: on a full disk the store says so, and what was stored can be read. Once
// there is room it takes what comes, by the connections that are there, and has lost
// nothing. On a disk that is full from the start it does not begin.
func TestFullDisk(t *testing.T) {
	disk, end, err := lab.NewDisk(t.TempDir(), 64)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	o := EmbedOptions{Dir: filepath.Join(disk.Path(), "nats"), Host: "127.0.0.1", Port: -1, Token: "sesame, open up",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	e, err := Embed(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	closing := true
	defer func() {
		if closing {
			e.Close()
		}
	}()
	h, ctx := dialed(t, e, time.Minute), t.Context()
	away, err := Open(ctx, Options{URI: "nats://" + e.Address(), Token: o.Token, Lease: time.Minute, Log: o.Log})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	if err := h.Jobs.Create(ctx, definition("before")); err != nil {
		t.Fatal(err)
	}
	if err := h.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	until := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s did not come", what)
			}
		}
	}
	if err := disk.Fill(ctx); err != nil {
		t.Fatal(err)
	}
	// It ends when the disk takes no more, and the server has noticed.
	for i := 0; h.Ready(ctx) == nil; i++ {
		_ = h.Workers.Present(ctx, &service.Worker{Name: "w", Host: strings.Repeat("h", 4096)})
	}
	until("what is wrong", func() bool { return errors.Is(h.Ready(ctx), ErrUnwritable) })
	until("the cause", func() bool { return errors.Is(h.Ready(ctx), syscall.ENOSPC) })
	if hint := mongo.HintOf(h.Ready(ctx)); !strings.Contains(hint, "make room") {
		t.Errorf("the hint %q", hint)
	}
	for _, from := range []*Hub{h, away} {
		if d, err := from.Jobs.Definition(ctx, "before"); err != nil || d.Name != "before" {
			t.Errorf("while the disk is full: %+v, %v", d, err)
		}
	}
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}
	until("the store that goes on", func() bool { return h.Ready(ctx) == nil })
	until("the way to it from outside", func() bool { return away.Ready(ctx) == nil })
	if err := away.Jobs.Create(ctx, definition("after")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"before", "after"} {
		if _, err := h.Jobs.Definition(ctx, name); err != nil {
			t.Errorf("with room again: %v", err)
		}
	}
	if _, err := h.Leases.Take(ctx, Control("before"), service.Lease{Worker: "w1", Run: "r1"}); err != nil {
		t.Error(err)
	}
	away.Close()
	h.Close()
	closing = false
	e.Close()
	if err := disk.Fill(ctx); err != nil {
		t.Fatal(err)
	}
	if again, err := Embed(ctx, o); !errors.Is(err, syscall.ENOSPC) || mongo.HintOf(err) == "" {
		t.Errorf("started on a full disk: %v", err)
		if err == nil {
			again.Close()
		}
	}
}
