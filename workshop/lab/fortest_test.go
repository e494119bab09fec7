package lab

import (
	"fmt"
	"testing"
)

// skippable is a test that may be skipped.
type skippable struct {
	TB
	name    string
	skipped bool
}

func (s *skippable) Helper()      {}
func (s *skippable) Name() string { return s.name }
func (s *skippable) Skip(...any)  { s.skipped = true }

// TestParts: make test leaves out what is nightly, and of many similar tests about all but
// one in n. Where it does not run, nothing is left out.
func TestParts(t *testing.T) {
	if testFlag("test.run") != "" {
		t.Skip("with -run all are played")
	}
	skipped := func(part func(TB), name string) bool {
		s := &skippable{name: name}
		part(s)
		return s.skipped
	}
	third := func(t TB) { Share(t, 3) }
	t.Setenv("MILLRACE_TEST_BRIEF", "1")
	if !skipped(Nightly, "TestA") {
		t.Error("a nightly test is not left out")
	}
	const all = 3000
	played := 0
	for i := range all {
		if !skipped(third, fmt.Sprintf("TestA/trial-%d", i)) {
			played++
		}
	}
	if played < all/3*8/10 || played > all/3*12/10 {
		t.Errorf("%d of %d are played", played, all)
	}
	t.Setenv("MILLRACE_TEST_BRIEF", "")
	for i := range 10 {
		if skipped(Nightly, "TestA") || skipped(third, fmt.Sprint("TestA/", i)) {
			t.Error("something is left out where make test does not run")
		}
	}
}
