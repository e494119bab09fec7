package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/term"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/workshop/lab"
)

// watched is the job under way, with what millrace says of it.
type watched struct {
	processes []*lab.Child // that run it
	env       []string     // of commands to the service
	last      job.Status
	following time.Time // since when
	maxLag    float64   // while following
	worker    string    // that has the job, of the service
}

// start starts millrace in an environment without the user's settings and running syncs. The end of ctx ends it.
func (d *demo) start(ctx context.Context, out, errOut io.Writer, args ...string) (*lab.Child, error) {
	cmd := spawn.CommandContext(ctx, d.millrace, args...)
	prefix := "MILLRACE_SECRET_" // the service's jobs refer to these
	if args[0] == "sync" || args[0] == "verify" || args[0] == "reverse" {
		prefix = "MILLRACE_"
	}
	source, target := d.source.cluster.URI(), d.target.cluster.URI()
	if args[0] == "reverse" { // which exchanges them
		source, target = target, source
	}
	cmd.Env = append(append(cmd.Env, d.env...), prefix+"SOURCE="+source, prefix+"TARGET="+target,
		"XDG_STATE_HOME="+d.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stdout, cmd.Stderr = out, errOut
	return lab.StartChild(cmd)
}

// ask runs a command of millrace and takes what it answers into a value, also when it ends with an exit code.
func (d *demo) ask(ctx context.Context, into any, args ...string) error {
	var out, errOut bytes.Buffer
	c, err := d.start(ctx, &out, &errOut, append(args, "--output", "json")...)
	if err != nil {
		return err
	}
	err = c.Wait()
	if unread := json.Unmarshal(out.Bytes(), into); err == nil {
		err = unread
	}
	if err != nil {
		return fmt.Errorf("millrace %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return nil
}

// begin starts a process that runs the job.
func (d *demo) begin(ctx context.Context, log io.Writer, args ...string) error {
	c, err := d.start(ctx, io.Discard, log, args...)
	if err == nil {
		d.processes = append(d.processes, c)
	}
	return err
}

// move lets millrace copy and follow while the writers are at work, and cuts over.
func (d *demo) move(ctx context.Context) (err error) {
	if err := d.startWriters(ctx); err != nil {
		return err
	}
	defer func() {
		if failed := d.writes.stop(); !errors.Is(err, failed) {
			err = errors.Join(err, failed)
		}
	}()
	what := "traded unique keys"
	if d.writes.sharded != nil { // whose users can have no unique key beside the shard key
		what = "chunks that move"
	}
	d.out.Printf("Writers at work: inserts, updates, deletes, transactions, %s, schema changes", what)
	running, end := context.WithCancel(ctx)
	defer func() {
		end()
		for _, c := range d.processes {
			<-c.Done()
		}
		d.out.SetOutput(os.Stdout)
		fmt.Print(d.later.String())
	}()
	start := d.startSync
	if d.service {
		start = d.startService
	}
	if d.files != nil {
		start = d.startFiles
		began := time.Now()
		defer func() { d.files.took = d.following.Sub(began) }()
	}
	return inTurn(running, start, d.awaitFollowing, d.awaitExpiry, d.writeBurst, d.finalize)
}

// startSync starts a sync. Its own words go where the demo's go: a live view on a terminal, log lines elsewhere.
func (d *demo) startSync(ctx context.Context) error {
	d.out.Print("\n$ millrace sync --source … --target … --job demo")
	if term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
		d.out.SetOutput(&d.later) // the child draws on the terminal
	}
	return d.begin(ctx, os.Stderr, "sync", "--job", "demo", "--capture", d.capture, "--via", d.via)
}

// startService starts serve and a worker, and makes the job, whose connection strings are secrets of the workers.
func (d *demo) startService(ctx context.Context) error {
	data, settings := filepath.Join(d.dir, "service"), filepath.Join(d.dir, "demo.yaml")
	said, err := os.Create(d.log())
	if err != nil {
		return err
	}
	defer said.Close()
	d.out.Print("\n$ millrace serve")
	if err := d.begin(ctx, said, "serve", "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--data-dir", data,
		"--name", "worker-of-serve", "--log-format", "json"); err != nil {
		return err
	}
	var at struct{ Console, NATS string }
	err = d.await(ctx, func() (bool, error) {
		log, err := os.ReadFile(d.log())
		for lines := bufio.NewScanner(bytes.NewReader(log)); lines.Scan(); {
			_ = json.Unmarshal(lines.Bytes(), &at)
		}
		return at.Console != "" && at.NATS != "", err
	})
	if err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(data, "token"))
	if err != nil {
		return fmt.Errorf("read the token of the service: %w", err)
	}
	d.env = []string{"MILLRACE_SERVER=" + strings.TrimSuffix(at.Console, "/"), "MILLRACE_TOKEN=" +
		strings.TrimSpace(string(token))}
	d.out.Printf("  console: %s (log in with the token in %s)", at.Console, filepath.Join(data, "token"))
	d.out.Print("$ millrace worker --nats …")
	if err := d.begin(ctx, said, "worker", "--nats", "nats://"+at.NATS, "--nats-token-file",
		filepath.Join(data, "nats-token"), "--name", "another-worker"); err != nil {
		return err
	}
	if err := os.WriteFile(settings, []byte("source: env:SOURCE\ntarget: env:TARGET\n"), 0o600); err != nil {
		return err
	}
	d.out.Print("$ millrace jobs create --name demo --file …")
	return d.ask(ctx, new(any), "jobs", "create", "--name", "demo", "--file", settings)
}

// log is the file of the service's log.
func (d *demo) log() string { return filepath.Join(d.dir, "serve.log") }

// look asks how the job stands.
func (d *demo) look(ctx context.Context) error {
	var j api.Job
	if d.ask(ctx, &j, "status", "--job", d.job) != nil {
		return nil //nolint:nilerr // it starts, or ends
	}
	return d.take(&j)
}

// take takes what was answered.
func (d *demo) take(j *api.Job) error {
	if j.State == service.Failed {
		return fmt.Errorf("the job has failed: %s: %s", j.Error, j.Hint)
	}
	if j.Report == nil || j.Report.Status == nil {
		return nil // nothing was reported yet
	}
	s := j.Report.Status
	d.worker = cmp.Or(j.Worker, d.worker)
	if s.Phase != d.last.Phase {
		d.out.Printf("  %s (writers so far: %s operations)", s.Phase, grouped(d.writes.total()))
	}
	if s.Phase == job.PhaseFollowing {
		d.maxLag = max(d.maxLag, s.Follow.LagSeconds)
		if d.following.IsZero() {
			d.following = time.Now()
		}
	}
	d.last = *s
	return nil
}

// await looks at the job until something is met.
func (d *demo) await(ctx context.Context, met func() (bool, error)) error {
	return poll(ctx, func() (bool, error) {
		for _, c := range d.processes {
			select {
			case <-c.Done():
				log, _ := os.ReadFile(d.log())
				return false, fmt.Errorf("a process of millrace ended before its time: %w\n%s",
					cmp.Or(c.Wait(), errors.New("without an error")), log[max(0, len(log)-2000):])
			default:
			}
		}
		if err := d.look(ctx); err != nil {
			return false, err
		}
		return met()
	})
}

// awaitFollowing waits for a target that follows closely. A busy machine may not get there: finalize drains the rest.
func (d *demo) awaitFollowing(ctx context.Context) error {
	return d.await(ctx, func() (bool, error) {
		since, lag := time.Since(d.following), d.last.Follow.LagSeconds
		return !d.following.IsZero() && (since >= d.follow && lag >= 0 && lag < 2 || since >= d.follow+15*time.Second), nil
	})
}

// awaitExpiry waits until the source has expired its sessions: their deletes have to be replicated as well.
func (d *demo) awaitExpiry(ctx context.Context) error {
	coll := d.source.client.Database("shop").Collection("sessions")
	return d.await(ctx, func() (bool, error) {
		soon, err := coll.CountDocuments(ctx, bson.M{"expires": bson.M{"$lt": time.Now().Add(time.Hour)}})
		if err != nil || soon > 0 {
			return false, err
		}
		left, err := coll.CountDocuments(ctx, bson.D{})
		d.expired = int64(d.kinds["shop.sessions"].Share*float64(d.docs)) - left
		return true, err
	})
}

// finalize cuts over, once nobody writes any more, and waits for the end of the job.
func (d *demo) finalize(ctx context.Context) error {
	if err := errors.Join(d.writes.stop(), d.look(ctx)); err != nil {
		return err
	}
	began, command := time.Now(), []string{"finalize", "--job", d.job}
	if d.service {
		command = append(command, "--when-caught-up", "--wait")
	}
	d.out.Print("$ millrace " + strings.Join(command, " "))
	var j api.Job
	if err := d.ask(ctx, &j, command...); err != nil {
		return err
	}
	d.finalizeTook = time.Since(began)
	if d.service {
		return d.look(ctx)
	}
	if err := d.processes[0].Wait(); err != nil {
		return fmt.Errorf("millrace sync: %w", err)
	}
	return d.take(&j)
}
