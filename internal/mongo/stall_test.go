package mongo

import (
	"testing"
	"time"

	"github.com/millrace/millrace/workshop/lab"
)

// TestStall: a member that gets nothing while the primary goes on is given up; an idle source is not.
func TestStall(t *testing.T) {
	lab.NeedServers(t)
	c, err := Connect(t.Context(), lab.ForTest(t, lab.Options{}).URI(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	now, err := c.Committed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	behind := now
	behind.TS.T -= 10
	for _, tc := range []struct {
		at   OpTime
		want Class
	}{{now, ""}, {behind, ClassRetry}} {
		w := &StallWatch{Cluster: c}
		check := func() error { return w.Check(t.Context(), tc.at) }
		if err := check(); err != nil || w.moved.IsZero() {
			t.Errorf("%+v, %v", w, err)
		}
		w.moved = w.moved.Add(-2 * stallAfter)
		for range 2 { // only asks; then it is too early to judge
			if err := check(); err != nil || w.asked.IsZero() {
				t.Errorf("%+v, %v", w, err)
			}
		}
		w.asked, w.expected = time.Now().Add(-stallAfter/2), now
		if err := check(); (err != nil) != (tc.want != "") || err != nil && Classify(err) != tc.want {
			t.Errorf("at %s: %v", tc.at, err)
		}
	}
}
