package cli

import (
	"bytes"
	"testing"
)

// TestSafeWriter: a character that comes in pieces stays one, and text of all
// scripts stays as it is.
func TestSafeWriter(t *testing.T) {
	var out bytes.Buffer
	w := &safe{out: &out}
	const text = "größe\t→ 数据 🎉 e\u0301\n"
	for i := range len(text) {
		if n, err := w.Write([]byte{text[i]}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if out.String() != text {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	_, _ = w.Write([]byte("a\x1b[1m\xff\U000e0001\u2028b"))
	if want := `a\u001b[1m\xff\udb40\udc01\u2028b`; out.String() != want {
		t.Errorf("%s, want %s", out.String(), want)
	}
}
