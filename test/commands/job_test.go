package commands_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/test"
)

// excluded is the collection of each play's main database that its job excludes.
const excluded = "z"

// args are the rules of plays.
func (b *bed) args(plays []*play) []string {
	prefix := regexp.MustCompile(`^(t\d+)(r\d+[an])`)
	run := prefix.FindStringSubmatch(plays[0].base)[1]
	args := []string{"sync", "--job", "table-" + run, "--source", b.sourceURI, "--target", b.targetURI, "--allow-missing",
		"--include", run + "r*", "--include", "free-" + run + "r*", "--include", "busy-" + run,
		"--exclude", run + "r*." + excluded}
	had := map[string]bool{}
	for _, p := range plays {
		pattern := prefix.FindString(p.base) + "*." + p.pattern()
		if !had[pattern] {
			had[pattern] = true
			args = append(args, p.set.rules.Args(pattern)...)
		}
	}
	return args
}

// job has one job of all plays, from their setup to its end.
func (b *bed) job(t *testing.T, plays []*play) (output string, err error) {
	t.Helper()
	began := time.Now()
	lap := func(what string) {
		t.Logf("%s: %.1f s", what, time.Since(began).Seconds())
		began = time.Now()
	}
	together(plays, (*play).setup)
	lap("setup")
	p, err := b.begin(t, plays)
	if err != nil {
		return output, err
	}
	lap("until " + plays[0].phase)
	if err := b.happen(t, p, plays); err != nil {
		return p.Output(), err
	}
	lap("commands")
	defer lap("finalize")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := p.Finalize(ctx); err != nil {
		err = fmt.Errorf("finalize: %w", err)
		_ = p.Wait(10 * time.Second) // it may have ended
		return p.Output(), err
	}
	err = p.Wait(limit)
	if err != nil && admitted(p.Output(), plays) {
		err = nil
	}
	return p.Output(), err
}

// begin starts the job, and waits for the phase of the plays.
func (b *bed) begin(t *testing.T, plays []*play) (*test.Process, error) {
	t.Helper()
	args := append(b.args(plays), "--until", "never")
	phase := plays[0].phase
	if phase == inCopy {
		args = append(args, "--max-rate-docs", "1")
	}
	if phase == copied {
		if err := b.block(t.Context(), plays, true); err != nil {
			return nil, err
		}
	}
	p := test.Start(t, b.bin, args...)
	want := map[string]string{inChange: "following", inCopy: "copying", copied: "copying"}[phase]
	if err := b.await(t.Context(), p, args[2], want); err != nil {
		return p, fmt.Errorf("%w\n%s", err, tail(p.Output()))
	}
	for _, x := range plays {
		x.world.Begin()
		if phase == inChange {
			x.world.Copied()
		}
	}
	if phase != copied {
		return p, nil
	}
	for _, x := range plays { // wait for all that is to be copied
		if x.err != nil {
			continue
		}
		if err := b.complete(t.Context(), p, x); err != nil {
			return p, err
		}
		x.world.Complete()
	}
	return p, nil
}

// happen does what happens while the job runs.
func (b *bed) happen(t *testing.T, p *test.Process, plays []*play) error {
	t.Helper()
	together(plays, (*play).change)
	switch plays[0].phase {
	case inCopy:
		if _, err := p.Command(t.Context(), "throttle", "--max-rate-docs", "0"); err != nil {
			_ = p.Wait(10 * time.Second)
			return err
		}
	case copied:
		return b.block(t.Context(), plays, false)
	}
	return nil
}

// together does a part of all plays, several at once. A play that fails ends by itself.
func together(plays []*play, part func(*play)) {
	var g errgroup.Group
	g.SetLimit(4)
	for _, p := range plays {
		g.Go(func() error {
			if p.err == nil {
				p.err = p.attempt(part)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// block keeps the copy of one collection from its end, or lets it go on.
func (b *bed) block(ctx context.Context, plays []*play, on bool) error {
	name := "busy-" + plays[0].base[:strings.Index(plays[0].base, "r")]
	if on {
		if err := b.source.Database(name).RunCommand(ctx,
			bson.D{{Key: "insert", Value: "c"}, {Key: "documents",
				Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}}).Err(); err != nil {
			return err
		}
	}
	var mode any = "off"
	if on {
		mode = "alwaysOn"
	}
	for _, point := range []string{"hangDuringBatchInsert", "hangDuringBatchUpdate"} {
		cmd := bson.D{{Key: "configureFailPoint", Value: point}, {Key: "mode", Value: mode},
			{Key: "data", Value: bson.D{{Key: "nss", Value: name + ".c"}}}}
		if !on {
			cmd = cmd[:2]
		}
		if err := b.target.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
			return err
		}
	}
	return nil
}

// complete waits until a play's documents are copied.
func (b *bed) complete(ctx context.Context, p *test.Process, x *play) error {
	for _, ns := range []string{x.ns("", "c"), x.ns("", "d"), x.ns("x", "d"), x.ns("free", "ring")} {
		want, _ := x.world.Documents(ns)
		db, coll, _ := strings.Cut(ns, ".")
		err := poll(ctx, p, "the copy of "+ns, func() bool {
			n, err := b.target.Database(db).Collection(coll).CountDocuments(ctx, bson.D{})
			return err == nil && int(n) >= want
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// await waits for a phase of a job.
func (b *bed) await(ctx context.Context, p *test.Process, job, phase string) error {
	order := []string{"catalog", "creating", "copying", "indexing", "overlap", "following", "finalizing", "finalized"}
	return poll(ctx, p, "phase "+phase, func() bool {
		var doc struct{ Phase string }
		err := b.target.Database("millrace").Collection("jobs").FindOne(ctx, bson.D{{Key: "_id", Value: job}}).Decode(&doc)
		return err == nil && slices.Index(order, doc.Phase) >= slices.Index(order, phase)
	})
}

// poll waits until something is so, or the process has ended.
func poll(ctx context.Context, p *test.Process, what string, reached func() bool) error {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if reached() {
			return nil
		}
		select {
		case <-p.Done():
			return errors.New("the job has ended before " + what)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("no %s within %s", what, limit)
}

// admitted reports that the job has ended well but for options and indexes that it may
// leave as they are.
func admitted(output string, plays []*play) bool {
	if !strings.Contains(output, "finalized, but the target differs") {
		return false
	}
	for _, p := range plays {
		if len(p.world.Limits) > 0 {
			return true
		}
	}
	return false
}

// lastError is the line of an output that says why the job has ended, with what follows.
func lastError(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	for i, l := range slices.Backward(lines) {
		if strings.HasPrefix(l, "millrace: ") || strings.HasPrefix(l, "error: ") || strings.HasPrefix(l, "Error: ") {
			return strings.Join(lines[i:], "\n")
		}
	}
	return strings.Join(lines[max(0, len(lines)-3):], "\n")
}

func tail(s string) string { return s[max(0, len(s)-2000):] }
