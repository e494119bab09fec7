package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Plain makes one line of a text of others, a name or a message: what would act
// on a terminal, or look like a line of ours, is shown as an escape.
func Plain(s string) string { return string(Escape(nil, []byte(s), "")) }

// Escape appends text to dst. What is no graphic character is written as an
// escape that means the same inside of JSON, unless it is one of keep.
func Escape(dst, text []byte, keep string) []byte {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			dst = fmt.Appendf(dst, `\x%02x`, text[0])
		case unicode.IsGraphic(r) || strings.ContainsRune(keep, r):
			dst = append(dst, text[:n]...)
		default:
			dst = escapeRune(dst, r)
		}
		text = text[n:]
	}
	return dst
}

func escapeRune(dst []byte, r rune) []byte {
	switch r {
	case '\n':
		return append(dst, `\n`...)
	case '\t':
		return append(dst, `\t`...)
	case '\r':
		return append(dst, `\r`...)
	}
	for _, u := range utf16.AppendRune(nil, r) {
		dst = fmt.Appendf(dst, `\u%04x`, u)
	}
	return dst
}

// safe is the only way to standard output and error: whatever a command prints,
// no character in it acts on a terminal but the end of a line and a tab.
type safe struct {
	mu   sync.Mutex
	out  io.Writer
	tail []byte // the first bytes of a character whose others are still to come
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := append(s.tail, p...)
	whole := len(text)
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if b := text[len(text)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(text[len(text)-i:]) {
				whole -= i
			}
			break
		}
	}
	_, err := s.out.Write(Escape(nil, text[:whole], "\n\t"))
	s.tail = append([]byte(nil), text[whole:]...)
	return len(p), err
}
