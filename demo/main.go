// Command demo shows millrace at work on two real replica sets of its own: it
// loads data of several kinds, keeps writing while `millrace sync` copies and
// follows, cuts over right after a burst of writes, and proves that nothing
// differs. Everything it starts ends with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// settings are the flags.
type settings struct {
	millrace string
	members  int
	docs     int
	follow   time.Duration
}

func main() {
	var s settings
	flag.StringVar(&s.millrace, "millrace", "bin/millrace", "the program to show")
	flag.IntVar(&s.members, "members", 3, "members of the source replica set; the target has one")
	flag.IntVar(&s.docs, "docs", 200_000, "documents to load, about")
	flag.DurationVar(&s.follow, "follow", 5*time.Second, "how long to follow before the cut-over")
	flag.Parse()
	os.Exit(run(s))
}

// run returns the exit code: 0 when the target is the same as the source.
func run(s settings) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once
	d := &demo{settings: s, out: newTeller(), began: time.Now()}
	err, left := d.show(ctx), d.close()
	switch {
	case err == nil && left == nil:
		return 0
	case ctx.Err() != nil && left == nil:
		fmt.Fprintln(os.Stderr, "demo: stopped; nothing is left running")
	default:
		fmt.Fprintln(os.Stderr, "demo:", errors.Join(err, left))
	}
	return 1
}

// show runs the demo from the clusters' start to the summary.
func (d *demo) show(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.startClusters, d.load, d.moveUnderWrites, d.compare} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return d.summary()
}
