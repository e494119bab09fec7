package lab

import (
	"strconv"
	"testing"
)

// drawnTest is a test that may be skipped.
type drawnTest struct {
	TB
	name    string
	skipped bool
}

func (d *drawnTest) Helper()      {}
func (d *drawnTest) Name() string { return d.name }
func (d *drawnTest) Skip(...any)  { d.skipped = true }

// TestDrawn: each test is drawn about one time in n, not those of similar names together,
// and always where nobody draws.
func TestDrawn(t *testing.T) {
	if testFlag("test.run") != "" {
		t.Skip("with -run all are played")
	}
	const draws, n = 3000, 3
	played, both := map[string]int{}, 0
	for i := range draws {
		t.Setenv("MILLRACE_TEST_DRAW", strconv.Itoa(1795475000+i))
		one, other := &drawnTest{name: "TestA/6.0"}, &drawnTest{name: "TestA/5.0"}
		Drawn(one, n)
		Drawn(other, n)
		for _, d := range []*drawnTest{one, other} {
			if !d.skipped {
				played[d.name]++
			}
		}
		if !one.skipped && !other.skipped {
			both++
		}
	}
	for name, times := range played {
		if times < draws/n*8/10 || times > draws/n*12/10 {
			t.Errorf("%s is played %d times of %d", name, times, draws)
		}
	}
	if together := draws / n / n; both < together/2 || both > together*2 {
		t.Errorf("%d times together, want about %d", both, together)
	}
	t.Setenv("MILLRACE_TEST_DRAW", "")
	d := &drawnTest{name: "TestA"}
	if Drawn(d, 1000000); d.skipped {
		t.Error("skipped, and nobody draws")
	}
}
