package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// teller prints the demo's own lines. While a child draws on the terminal they
// wait until it has ended. Safe for concurrent use.
type teller struct {
	terminal bool

	mu      sync.Mutex
	holding bool
	held    []string
}

func newTeller() *teller {
	return &teller{terminal: term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb"}
}

func (t *teller) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holding {
		t.held = append(t.held, line)
		return
	}
	fmt.Println(line)
}

// hold keeps lines back from now on, if there is a terminal that others draw on.
func (t *teller) hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holding = t.terminal
}

// release prints what was kept back.
func (t *teller) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holding = false
	if len(t.held) > 0 {
		fmt.Println(strings.Join(t.held, "\n"))
	}
	t.held = nil
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func megabytes(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/1e6) }
