package hub

import (
	"errors"
	"log/slog"
	"testing"
	"time"
)

// TestFormat: releases that are next to each other work together, others are refused, and a
// process that has become too old ends.
func TestFormat(t *testing.T) {
	e, err := Embed(t.Context(), EmbedOptions{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	enter := func(format int) (*Hub, error) {
		h, err := Open(t.Context(), Options{Embedded: e, Lease: time.Minute, Format: format,
			Log: slog.New(slog.DiscardHandler)})
		if err == nil {
			t.Cleanup(h.Close)
		}
		return h, err
	}
	var first *Hub
	for _, c := range []struct {
		format int
		refuse bool
	}{{3, false}, {5, true}, {1, true}, {2, false}, {3, false}, {4, false}, {3, false}, {2, true}, {6, true}, {5, false}} {
		h, err := enter(c.format)
		if errors.Is(err, errFormat) != c.refuse || (err == nil) == c.refuse {
			t.Fatalf("format %d: %v", c.format, err)
		}
		if first == nil {
			first = h
		}
	}
	newest, _, err := first.formats.newest(t.Context())
	if err != nil || newest != 5 || !errors.Is(first.formats.apart(newest), errFormat) {
		t.Errorf("the newest is %d (%v), and the first process may go on", newest, err)
	}
}
