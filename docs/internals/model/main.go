// Command model searches all interleavings of a small world for one in which
// the protocol of checkpoint, fence, terms, window and barriers is wrong.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	set := flag.String("rules", "new", "today or new")
	without := flag.String("without", "", "rules to leave out, with commas between them")
	with := flag.String("with", "", "rules to add")
	only := flag.String("scenario", "", "one scenario, all if empty")
	runs := flag.Int("runs", 0, "attempts at most, instead of the scenario's own")
	limit := flag.Int("limit", 30_000_000, "states at most")
	seek := flag.String("seek", "", "report only what is wrong in these words")
	list := flag.Bool("list", false, "list rules and scenarios")
	flag.Parse()
	if *list {
		printAll()
		return
	}
	r, err := parseRules(*set, *without, *with)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	bad := false
	for _, sc := range scenarios() {
		if *only != "" && sc.name != *only {
			continue
		}
		sc.world.rules, sc.world.seek = r, *seek
		if *runs > 0 {
			sc.world.runs = *runs
		}
		bad = report(sc, *limit) || bad
	}
	if bad {
		os.Exit(1)
	}
}

func printAll() {
	for _, n := range ruleNames() {
		fmt.Printf("rule     %-20s %s\n", n[0], n[1])
	}
	for _, sc := range scenarios() {
		fmt.Printf("scenario %-20s %s\n", sc.name, sc.says)
	}
}

// report searches one scenario and prints what comes of it.
func report(sc scenario, limit int) (bad bool) {
	began := time.Now()
	f := search(&sc.world, limit)
	took := time.Since(began).Round(10 * time.Millisecond)
	switch {
	case f.wrong != "":
		fmt.Printf("%s: WRONG after %d states, %s: %s\n", sc.name, f.states, took, f.wrong)
		for i, step := range f.trace {
			fmt.Printf("  %2d. %s\n", i+1, step)
		}
		return true
	case !f.whole:
		fmt.Printf("%s: not finished after %d states, %s\n", sc.name, f.states, took)
		return true
	}
	fmt.Printf("%s: nothing wrong in %d states, %d of them finalized, %s\n", sc.name, f.states, f.ends, took)
	return false
}
