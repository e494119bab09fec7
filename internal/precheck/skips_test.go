package precheck

import (
	"slices"
	"testing"
)

// TestSkips: a failed check names the settings that have it pass; one that did not fail
// names none.
func TestSkips(t *testing.T) {
	for _, c := range []struct {
		check Check
		want  []string
	}{
		{Check{Level: Fail, Name: "versions",
			Hint: "use a target at least as new, or accept the risk with --allow-downgrade"}, []string{"allow-downgrade: true"}},
		{Check{Level: Fail, Name: "names",
			Hint: "did you mean --allow-downgrades? --allow-missing accepts what is yet to come"},
			[]string{"allow-missing: true"}},
		{Check{Level: Fail, Name: checkExisting, Hint: "drop them"}, []string{"on-existing: merge", "on-existing: drop"}},
		{Check{Level: Warn, Name: checkExisting}, nil},
		{Check{Level: Fail, Name: "oplog", Hint: "begin anew with --restart and --on-existing drop"}, nil},
	} {
		if got := c.check.Skips(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c.check, got)
		}
	}
}
