package main

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// terminal understands what a screen writes, as a terminal would.
type terminal struct {
	t             *testing.T
	columns, rows int
	grid          []string // rows below the ones that scrolled away
	past          []string
	x, y          int
}

func newTerminal(t *testing.T, columns, rows int) *terminal {
	return &terminal{t: t, columns: columns, rows: rows, grid: make([]string, rows)}
}

func (m *terminal) Write(p []byte) (int, error) {
	for s := string(p); s != ""; {
		switch {
		case strings.HasPrefix(s, "\x1b["):
			end := 2 + strings.IndexAny(s[2:], "AJKhl")
			m.control(s[2:end], s[end])
			s = s[end+1:]
		case s[0] == '\r':
			m.x, s = 0, s[1:]
		case s[0] == '\n':
			m.x, s = 0, s[1:]
			m.down()
		default:
			r := []rune(s)[0]
			m.put(r)
			s = s[len(string(r)):]
		}
	}
	return len(p), nil
}

func (m *terminal) control(arg string, kind byte) {
	switch kind {
	case 'A':
		n := 0
		if _, err := fmt.Sscan(arg, &n); err != nil || n > m.y {
			m.t.Fatalf("cursor moved up %q from row %d", arg, m.y)
		}
		m.y -= n
	case 'J':
		m.grid[m.y] = string([]rune(m.grid[m.y])[:min(m.x, len([]rune(m.grid[m.y])))])
		for i := m.y + 1; i < m.rows; i++ {
			m.grid[i] = ""
		}
	case 'K':
		m.grid[m.y] = string([]rune(m.grid[m.y])[:min(m.x, len([]rune(m.grid[m.y])))])
	}
}

func (m *terminal) put(r rune) {
	if m.x == m.columns {
		m.x = 0
		m.down()
	}
	line := []rune(m.grid[m.y])
	for len(line) <= m.x {
		line = append(line, ' ')
	}
	line[m.x] = r
	m.grid[m.y] = string(line)
	m.x++
}

func (m *terminal) down() {
	if m.y < m.rows-1 {
		m.y++
		return
	}
	m.past = append(m.past, m.grid[0])
	m.grid = append(m.grid[1:], "")
}

// all is everything that was and is shown, without what is empty at the end.
func (m *terminal) all() string {
	return strings.TrimRight(strings.Join(append(append([]string{}, m.past...), m.grid...), "\n"), "\n")
}

func (m *terminal) screen() *screen {
	return &screen{out: m, size: func() (int, int) { return m.columns, m.rows }}
}

func lines(texts ...string) func(int, int) []string {
	return func(int, int) []string { return texts }
}

func TestLogsPassAboveTheBlock(t *testing.T) {
	m := newTerminal(t, 20, 6)
	s := m.screen()
	log := func(text string) { _, _ = s.Write([]byte(text + "\n")) }
	log("first")
	s.draw(lines("block a", "block bbbbb"))
	log("second")
	s.draw(lines("block c", "b", "third row"))
	log("a line that is longer than the terminal")
	if got, want := m.all(),
		"first\nsecond\na line that is longe\nr than the terminal\nblock c\nb\nthird row"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	s.draw(lines("one row"))
	s.clear()
	log("last")
	if got, want := m.all(), "first\nsecond\na line that is longe\nr than the terminal\nlast"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestNarrowerTerminal(t *testing.T) {
	m := newTerminal(t, 40, 10)
	s := m.screen()
	s.draw(lines("0123456789 0123456789", "x"))
	// The terminal wraps the long line as it becomes narrower.
	m.columns = 15
	m.grid = []string{"0123456789 0123", "456789", "x", "", "", "", "", "", "", ""}
	m.y = 3
	s.draw(lines("short", "y"))
	if got := m.all(); got != "short\ny" {
		t.Errorf("got\n%s", got)
	}
}

// Nothing flickers: a redraw erases no more of a row than what its new text
// leaves.
func TestRedrawErasesNoText(t *testing.T) {
	out := frame([]string{"same", "old text"}, 80, "", []string{"same", "new"})
	if i := strings.Index(out, "same"); strings.Contains(out[:i], "\x1b[J") || strings.Contains(out[:i], "\x1b[K") {
		t.Errorf("%q", out)
	}
}

func TestScreenTakesConcurrentWriters(t *testing.T) {
	m := newTerminal(t, 60, 12)
	s := m.screen()
	log := slog.New(slog.NewTextHandler(s, nil))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 50 {
				if g == 0 {
					s.draw(lines("block", fmt.Sprint(i)))
				} else {
					log.Info("x", "g", g)
				}
			}
		})
	}
	wg.Wait()
	s.draw(lines("BLOCK", "END"))
	got := m.all()
	if strings.Contains(got, "block") || !strings.HasSuffix(got, "BLOCK\nEND") || strings.Count(got, "level=INFO") != 150 {
		t.Errorf("got\n%s", got)
	}
}
