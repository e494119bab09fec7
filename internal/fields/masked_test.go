package fields

import (
	"slices"
	"testing"
)

// TestMasked: the paths are those of the result.
func TestMasked(t *testing.T) {
	m := mustParse(t,
		`{"mask": {"card": {"last": 2}, "in.pin": "null", "old": "year"}, "convert": {"n": {"to": "string"}}, "rename": {"card": "number"}, "move": {"old": "new.place"}}`)
	got := m.Masked()
	slices.Sort(got)
	for _, want := range []string{"number", "in.pin", "new.place"} {
		if !slices.Contains(got, want) {
			t.Errorf("%v lacks %s", got, want)
		}
	}
	if slices.Contains(got, "n") {
		t.Errorf("%v has what is converted alone", got)
	}
	if got := mustParse(t, `{"drop": ["a"]}`).Masked(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
