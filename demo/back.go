package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// goBack lets the source follow the target after the cut-over and cuts over again, and then there once more. Users
// write all the time, and what they write before a job leads back arrives, too.
func (d *demo) goBack(ctx context.Context) error {
	if !d.back {
		return nil
	}
	for i, of := range []string{"demo", "demo-back"} {
		d.source, d.target = d.target, d.source
		d.changed += int(d.writes.schema.Load())
		d.watched, d.job, d.series, d.unequal = watched{}, []string{"demo-back", "demo-back2"}[i], of, nil
		if err := d.reverse(ctx, of); err != nil {
			return err
		}
	}
	return nil
}

// reverse runs the job that leads another one back.
func (d *demo) reverse(ctx context.Context, of string) (err error) {
	if err := d.startWriters(ctx); err != nil {
		return err
	}
	defer func() {
		if failed := d.writes.stop(); !errors.Is(err, failed) {
			err = errors.Join(err, failed)
		}
	}()
	running, end := context.WithCancel(ctx)
	defer func() {
		end()
		for _, c := range d.processes {
			<-c.Done()
		}
	}()
	d.out.Printf("\n$ millrace reverse --job %s", of)
	start := func(ctx context.Context) error { return d.begin(ctx, os.Stderr, "reverse", "--job", of) }
	if err := inTurn(running, start, d.awaitFollowing, d.finalize, d.compare); err != nil {
		return err
	}
	different := d.report.Count + int64(len(d.report.Schema)+len(d.last.Differences)+len(d.unequal))
	d.out.Printf("Written meanwhile: %s operations; applied: %s, %d schema changes; differences: %d",
		grouped(d.writes.total()), grouped(d.last.Follow.Operations), d.last.Follow.SchemaChanges, different)
	if different > 0 {
		return fmt.Errorf("after millrace reverse --job %s the clusters differ in %d things: %v %v", of, different,
			d.report.Schema, d.unequal)
	}
	return nil
}
