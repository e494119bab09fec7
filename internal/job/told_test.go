package job

import "testing"

// TestFinalizeTold: the log is to have a wish to finalize once, whoever speaks it out again;
// one that comes after another was taken back is another one.
func TestFinalizeTold(t *testing.T) {
	c, err := newControl("", ModeIncremental)
	if err != nil {
		t.Fatal(err)
	}
	want := func(untold bool) {
		t.Helper()
		if _, got := c.wantFinal(); got != untold {
			t.Errorf("untold %v", got)
		}
	}
	want(true)
	want(false)
	if was, begun := c.withdraw(); !was || begun {
		t.Fatal("it was not there")
	}
	want(true)
	if c, err = newControl("", ModeIncremental); err != nil {
		t.Fatal(err)
	}
	c.told = true // by another process
	want(false)
	c.withdraw()
	want(true)
}
