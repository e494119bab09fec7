package ycsb

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// statusLine writes YCSB's status lines. A nil one writes none.
type statusLine struct {
	w      io.Writer
	label  string
	total  int64
	window *tallies // since the last line
	wrote  bool
	at     time.Duration // of the last line
	done   int64         // by then
}

// write writes a line when one is due: at the beginning, every interval and at
// the end.
func (s *statusLine) write(since time.Duration, returns *[kinds][statuses]int64, every time.Duration, last bool) {
	if s == nil {
		return
	}
	first := !s.wrote
	if !first && !last && since < s.at.Truncate(every)+every {
		return
	}
	s.wrote = true
	done := operationsOf(returns)
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", time.Now().Format("2006-01-02 15:04:05:")+fmt.Sprintf("%03d", time.Now().UnixMilli()%1000))
	if s.label != "" {
		b.WriteString(s.label + " ")
	}
	fmt.Fprintf(&b, "%d sec: %d operations; ", int64(since.Seconds()), done)
	if wide := since - s.at; !first && wide > 0 {
		fmt.Fprintf(&b, "%s current ops/sec; ", short(float64(done-s.done)/wide.Seconds()))
	}
	if !last && s.total > 0 {
		b.WriteString("est completion in " + remaining(since, done, s.total) + " ")
	}
	for name, t := range s.window.all {
		fmt.Fprintf(&b, "[%s: Count=%d, Max=%d, Min=%d, Avg=%s, 90=%d, 99=%d, 99.9=%d, 99.99=%d] ", name, t.count, t.most, t.least,
			short(t.mean()), t.percentile(90), t.percentile(99), t.percentile(99.9), t.percentile(99.99))
	}
	s.window.reset()
	s.at, s.done = since, done
	fmt.Fprintln(s.w, b.String())
}

// remaining tells the time that the rest will take at the rate so far.
func remaining(since time.Duration, done, total int64) string {
	if done == 0 {
		return "0 seconds"
	}
	seconds := int64(since.Seconds() * float64(total-done) / float64(done))
	days, hours, minutes := seconds/86400, seconds/3600%24, seconds/60%60
	switch {
	case days > 0:
		return several(days, "day") + " " + several(hours, "hour")
	case hours > 0:
		return several(hours, "hour") + " " + strconv.FormatInt(minutes, 10) + " minutes"
	case minutes > 0:
		return strconv.FormatInt(minutes, 10) + " minutes"
	}
	return several(seconds, "second")
}

func several(n int64, unit string) string {
	if n != 1 {
		unit += "s"
	}
	return strconv.FormatInt(n, 10) + " " + unit
}

// short is a number with at most two digits after the point.
func short(f float64) string {
	s := strconv.FormatFloat(f, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
