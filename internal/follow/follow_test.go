package follow

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestDuring(t *testing.T) {
	full := errors.New("disk full")
	waits := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		read, other func(context.Context) error
		want        error
	}{
		"a write is broken off by the end": {
			func(context.Context) error { return ErrFinished },
			func(ctx context.Context) error { return fmt.Errorf("save checkpoint: %w", waits(ctx)) },
			ErrFinished,
		},
		"a write fails":  {waits, func(context.Context) error { return full }, full},
		"reading fails":  {func(context.Context) error { return full }, waits, full},
		"others end too": {func(context.Context) error { return nil }, waits, nil},
	} {
		for range 50 {
			if err := during(t.Context(), c.read, c.other); !errors.Is(err, c.want) {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}
