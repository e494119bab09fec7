package mongo

import "testing"

// TestEvidence: each series is known by tests, from documentation or not at all, by kind of deployment.
func TestEvidence(t *testing.T) {
	const tested, read, unknown = EvidenceTests, EvidenceDocs, EvidenceNone
	for _, c := range []struct {
		version      string
		set, sharded Evidence
	}{
		{"4.2.6", tested, read}, {"4.4.2", tested, tested}, {"5.0.32", tested, tested}, {"5.1.0", read, read},
		{"6.0.27", tested, tested}, {"6.3.1", read, read}, {"7.0.28", tested, read}, {"7.3.4", read, read},
		{"8.0.0", read, read}, {"8.0.15", read, read}, {"8.2.1", read, read}, {"8.3.0", read, read}, {"9.0.4", read, read},
		{"9.1.0", unknown, unknown}, {"10.0.0", unknown, unknown},
	} {
		v, err := ParseVersion(c.version)
		if err != nil {
			t.Fatal(err)
		}
		for kind, want := range map[Kind]Evidence{KindReplicaSet: c.set, KindStandalone: c.set, KindSharded: c.sharded} {
			if got := (Info{Kind: kind, Version: v}).Evidence(); got != want {
				t.Errorf("%s %s is %s, want %s", kind, v, got, want)
			}
		}
	}
	if oldest, newest := Tested(); oldest.String() != "4.2.0" || newest.String() != "7.0.0" {
		t.Errorf("tested from %s to %s", oldest, newest)
	}
}

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
