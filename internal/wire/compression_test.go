package wire

import (
	"testing"
	"time"
)

// TestChooser: messages are compressed where that moves more, on a link that is far
// and while it is busy; and what was found is looked at again.
func TestChooser(t *testing.T) {
	const message = 1 << 20
	for name, c := range map[string]struct {
		rtt             time.Duration
		plain, squeezed time.Duration // between two answers, with many under way
		on              bool
	}{
		"slow link, much gained": {rtt: 20 * time.Millisecond, plain: 80 * time.Millisecond,
			squeezed: 30 * time.Millisecond, on: true},
		"slow link, nothing gained": {rtt: 20 * time.Millisecond, plain: 80 * time.Millisecond,
			squeezed: 80 * time.Millisecond},
		"fast link, the processor is slow": {rtt: 20 * time.Millisecond, plain: 5 * time.Millisecond,
			squeezed: 9 * time.Millisecond},
		"near": {rtt: time.Millisecond, plain: 80 * time.Millisecond,
			squeezed: 30 * time.Millisecond},
		"nobody waits for it": {rtt: 20 * time.Millisecond, plain: 1500 * time.Millisecond,
			squeezed: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			reported := 0
			ch := chooser{rtt: func() time.Duration { return c.rtt }, changed: func(c Compression) { reported++ }}
			now := time.Unix(1000, 0)
			pass := func(during time.Duration) {
				const underWay = 4
				var begun [underWay]time.Time
				var squeezed [underWay]bool
				for i := range begun {
					begun[i], squeezed[i] = now, ch.on.Load()
				}
				for end := now.Add(during); now.Before(end); {
					for i := range begun { // the link carries one after the other
						step := c.plain
						if squeezed[i] {
							step = c.squeezed
						}
						now = now.Add(step)
						ch.moved(message, begun[i], now)
						begun[i], squeezed[i] = now, ch.on.Load()
					}
				}
			}
			pass(20 * time.Second)
			if got := ch.compression(); got.On != c.on || ch.on.Load() != c.on {
				t.Fatalf("after 20 s: %+v, on %t", got, ch.on.Load())
			}
			if want := float64(c.plain) / float64(c.squeezed); c.on && (ch.gain < 0.8*want || ch.gain > 1.2*want) {
				t.Errorf("gain %.2f, want about %.2f", ch.gain, want)
			}
			if c.on {
				c.squeezed = 2 * c.plain // the data change
				if pass(3 * time.Minute); ch.compression().On || reported != 2 {
					t.Errorf("after other data: %+v, reported %d times", ch.compression(), reported)
				}
			}
		})
	}
}
