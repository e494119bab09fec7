package mongo

import "testing"

func TestVersions(t *testing.T) {
	for _, c := range []struct{ a, b, previous string }{
		{"4.2.6", "4.4.0", "0.0.0"}, {"4.4", "5.0", "4.2.0"}, {"5.0.9", "6.0.5", "4.4.0"}, {"6.0.6-5", "7.0.0", "5.0.0"},
		{"9.0.1", "10.0", "8.0.0"},
	} {
		a, errA := ParseVersion(c.a)
		b, errB := ParseVersion(c.b)
		if errA != nil || errB != nil || !a.OlderThan(b) || b.OlderThan(a) || a.OlderThan(a.Series()) ||
			a.Series().OlderThan(a) {
			t.Errorf("%+v: %v %v, %v %v", c, a, b, errA, errB)
		}
		if got := a.PreviousSeries().String(); got != c.previous {
			t.Errorf("before %s: %s", c.a, got)
		}
	}
	for _, s := range []string{"", "x", "6.x"} {
		if _, err := ParseVersion(s); err == nil {
			t.Errorf("%q is a version", s)
		}
	}
}
