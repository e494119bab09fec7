package wire

import "testing"

// TestReplySize: the next reply follows the size of the documents of the last.
func TestReplySize(t *testing.T) {
	s := ReplySize{Bytes: 1000, Docs: 100}
	for _, c := range []struct {
		docs  int
		bytes int64
		want  int
	}{
		{100, 1000, 100}, {100, 100_000, 1}, {1, 16 << 20, 1}, {1, 10, 2}, {2, 20, 4}, {0, 0, 4},
		{4, 40, 8}, {8, 80, 16}, {1, 250, 4}, {4, 2000, 2},
	} {
		if s.Learn(c.docs, c.bytes); s.Docs != c.want {
			t.Errorf("after %d documents of %d bytes: %d, want %d", c.docs, c.bytes, s.Docs, c.want)
		}
	}
	none := ReplySize{}
	if none.Learn(5, 500); none.Docs != 0 {
		t.Error("the server is not left to choose")
	}
}
