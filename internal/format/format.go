// Package format writes figures for people, the same on terminals and on pages.
package format

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Number is what figures are of.
type Number interface{ int | int64 | float64 }

// Count shortens a number of things: 950, 48.1k, 1.20M.
func Count[N Number](n N) string { return shorten(float64(n), "", "k", "M", "G") }

// Size shortens a number of bytes in decimal units.
func Size[N Number](n N) string { return shorten(float64(n), " B", " kB", " MB", " GB", " TB") }

// shorten writes a number in the unit in which it has up to three digits, and
// keeps three of a fraction.
func shorten(n float64, units ...string) string {
	i, digits := 0, 0
	for ; n >= 1000 && i < len(units)-1; i++ {
		n /= 1000
	}
	switch {
	case i > 0 && n < 10:
		digits = 2
	case i > 0 && n < 100:
		digits = 1
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + units[i]
}

// Clock writes a duration as 1:02:03 or 4d 01:02:03.
func Clock(d time.Duration) string {
	s := max(0, int64(d.Round(time.Second)/time.Second)) // the wall clock may have been set back
	out := fmt.Sprintf("%d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if days := s / 86400; days > 0 {
		out = fmt.Sprintf("%dd %02d:%02d:%02d", days, s/3600%24, s/60%60, s%60)
	}
	return out
}

// Seconds writes a figure of the status: "0.4 s", "12 s", "3.2 h", "unknown"
// when negative.
func Seconds(s float64) string {
	switch {
	case s < 0:
		return "unknown"
	case s < 10:
		return strconv.FormatFloat(s, 'f', 1, 64) + " s"
	case s < 120:
		return strconv.FormatFloat(s, 'f', 0, 64) + " s"
	case s < 7200:
		return strconv.FormatFloat(s/60, 'f', 0, 64) + " min"
	case s < 48*3600:
		return strconv.FormatFloat(s/3600, 'f', 1, 64) + " h"
	}
	return strconv.FormatFloat(s/86400, 'f', 1, 64) + " d"
}

// Share is done/total within 0 and 1. The totals are estimates of the server,
// so that done may exceed them.
func Share(done, total int64, finished bool) float64 {
	switch {
	case finished:
		return 1
	case total <= 0:
		return 0
	}
	return min(max(float64(done)/float64(total), 0), 1)
}

// Counts lists what is not 0, by name: "network 3, timeout 1".
func Counts(of map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if n := of[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, n))
		}
	}
	return strings.Join(parts, ", ")
}

// Funcs returns functions for templates, which take numbers of any kind.
func Funcs() map[string]any {
	return map[string]any{
		"count": func(n any) string { return Count(number(n)) }, "size": func(n any) string { return Size(number(n)) },
		"add": add, "per": func(n any, seconds float64) float64 { return number(n) / max(seconds, 0.001) },
		"clock":   func(s float64) string { return Clock(time.Duration(s * float64(time.Second))) },
		"seconds": Seconds, "share": Share, "counts": Counts,
	}
}

func number(n any) float64 {
	if r := reflect.ValueOf(n); r.CanInt() {
		return float64(r.Int())
	}
	return reflect.ValueOf(n).Float()
}

func add(a, b any) any {
	if x, y := reflect.ValueOf(a), reflect.ValueOf(b); x.CanInt() && y.CanInt() {
		return x.Int() + y.Int()
	}
	return number(a) + number(b)
}
