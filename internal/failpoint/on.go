//go:build failpoint

package failpoint

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// active are the rules of this process: no caller has to carry them.
var active points //nolint:gochecknoglobals // in test builds alone

// rule is what happens at a point.
type rule struct {
	point  string // * is any
	n      int    // 0 is each hit
	onward bool
	action string
	do     func(point string) error
}

type points struct {
	mu    sync.Mutex
	file  string // that holds the rules, if one does
	seen  os.FileInfo
	rules []rule
	hits  map[string]int
}

// Hit does what the rules say at the point.
func Hit(point string) { _ = active.hit(point, "") }

// HitOf is Hit at a point that is about something.
func HitOf(point, what string) { _ = active.hit(point, what) }

// Err is Hit at a point that can fail.
func Err(point string) error { return active.hit(point, "") }

func (p *points) hit(point, what string) error {
	p.mu.Lock()
	p.load()
	var due []func(string) error
	names := []string{"*", point, point + "/" + what}
	if what == "" {
		names = names[:2]
	}
	for _, name := range names {
		p.hits[name]++
		n := p.hits[name]
		for _, r := range p.rules {
			if r.point == name && (r.n == 0 || r.n == n || r.onward && n > r.n) {
				due = append(due, r.do)
				fmt.Fprintf(os.Stderr, "failpoint %s hit %d: %s\n", names[len(names)-1], n, r.action)
			}
		}
	}
	p.mu.Unlock()
	var err error
	for _, do := range due {
		err = cmp.Or(do(point), err)
	}
	return err
}

// load reads rules that are new. p.mu is locked.
func (p *points) load() {
	if p.hits == nil {
		text, isFile := strings.CutPrefix(os.Getenv("MILLRACE_FAILPOINTS"), "@")
		if isFile {
			p.file, text = text, ""
		}
		p.set(text)
	}
	if p.file == "" {
		return
	}
	info, err := os.Stat(p.file)
	if err != nil || p.seen != nil && os.SameFile(info, p.seen) && info.ModTime().Equal(p.seen.ModTime()) {
		return
	}
	text, err := os.ReadFile(p.file)
	if err != nil {
		return
	}
	p.seen = info
	p.set(string(text))
}

// set replaces the rules. Bad rules end the process: a test must not pass without its rules.
func (p *points) set(text string) {
	p.rules, p.hits = nil, map[string]int{}
	for _, s := range strings.Split(text, ";") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		r, err := parse(s)
		if err != nil {
			fmt.Fprintf(os.Stderr, "MILLRACE_FAILPOINTS: %v\n", err)
			os.Exit(3)
		}
		p.rules = append(p.rules, r)
	}
}

func parse(s string) (r rule, err error) {
	where, action, ok := strings.Cut(s, "=")
	if !ok {
		return r, fmt.Errorf("rule %q has no action", s)
	}
	r.action = action
	where, r.onward = strings.CutSuffix(where, "+")
	var n string
	if r.point, n, ok = strings.Cut(where, ":"); ok {
		if r.n, err = strconv.Atoi(n); err != nil || r.n < 1 {
			return r, fmt.Errorf("rule %q: %q is not a number of a hit", s, n)
		}
	}
	verb, long, _ := strings.Cut(action, ":")
	switch verb {
	case "kill":
		r.do = func(string) error {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // it comes at once
		}
	case "stop":
		r.do = func(string) error { return syscall.Kill(os.Getpid(), syscall.SIGSTOP) }
	case "sleep":
		d, err := time.ParseDuration(long)
		r.do = func(string) error { time.Sleep(d); return nil }
		return r, err
	case "error":
		r.do = func(point string) error { return fmt.Errorf("failpoint %s: %w", point, syscall.ECONNRESET) }
	case "note":
		r.do = func(string) error { return nil }
	default:
		return r, fmt.Errorf("rule %q: unknown action", s)
	}
	return r, nil
}
