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
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/workshop/lab"
)

// jobSettings is the job: its connection strings are secrets of the workers.
const jobSettings = "source: env:SOURCE\ntarget: env:TARGET\n"

// serving is the service under way: serve, and one more worker.
type serving struct {
	*demo
	said      *logged
	processes []*lab.Child
	client    *api.Client
	ended     sync.WaitGroup // watch
}

// logged takes the log of the service's processes: all of it, for when something
// fails, and what serve says of where it is reached.
type logged struct {
	mu            sync.Mutex
	tail          []string
	console, nats string
}

// tailLines bounds what is kept of a log.
const tailLines = 20

// read takes a log in JSON lines until it ends.
func (l *logged) read(from io.Reader) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		l.take(lines.Text())
	}
	_, _ = io.Copy(io.Discard, from) // what is no line blocks nobody
}

func (l *logged) take(line string) {
	var said struct{ Console, NATS string }
	_ = json.Unmarshal([]byte(line), &said)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.console, l.nats = cmp.Or(l.console, said.Console), cmp.Or(l.nats, said.NATS)
	l.tail = append(l.tail, line)
	l.tail = slices.Delete(l.tail, 0, max(0, len(l.tail)-tailLines))
}

// reached is where serve is reached, "" before it has said so.
func (l *logged) reached() (console, nats string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.console, l.nats
}

func (l *logged) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.tail, "\n")
}

// serveUnderWrites lets the service copy and follow while the writers are at work, and
// cuts over.
func (d *demo) serveUnderWrites(ctx context.Context) error {
	return d.underWrites(ctx, func(ctx context.Context) (err error) {
		s := &serving{demo: d, said: &logged{}}
		running, end := context.WithCancel(ctx)
		defer func() {
			end()
			s.ended.Wait()
			for _, p := range s.processes {
				<-p.Done()
			}
			if err != nil && ctx.Err() == nil {
				err = fmt.Errorf("%w; the service's log ends with\n%s", err, s.said.last())
			}
		}()
		if err := s.startProcesses(running); err != nil {
			return err
		}
		return s.moveByJob(running)
	})
}

// startProcesses starts serve and a worker, and waits until both are there.
func (s *serving) startProcesses(ctx context.Context) error {
	data := filepath.Join(s.dir, "service")
	s.out.Print("\n$ millrace serve")
	if err := s.run(ctx, "serve", "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--data-dir", data, "--name", "worker-of-serve"); err != nil {
		return err
	}
	var console, nats string
	if err := s.await(ctx, func() (bool, error) {
		console, nats = s.said.reached()
		return console != "" && nats != "", nil
	}); err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(data, "token"))
	if err != nil {
		return fmt.Errorf("read the token of the service: %w", err)
	}
	at, err := url.Parse(console)
	if err != nil {
		return fmt.Errorf("the console's address: %w", err)
	}
	s.client = api.NewClient(at.Host, strings.TrimSpace(string(token)))
	s.out.Printf("  console: %s (log in with the token in %s)", console, filepath.Join(data, "token"))
	s.out.Print("$ millrace worker --nats …")
	return s.run(ctx, "worker", "--nats", "nats://"+nats, "--nats-token-file", filepath.Join(data, "nats-token"), "--name", "another-worker")
}

// run starts a process of the service, whose log is taken.
func (s *serving) run(ctx context.Context, args ...string) error {
	r, w := io.Pipe()
	c, err := s.start(ctx, io.Discard, w, append(args, "--log-format", "json")...)
	if err != nil {
		return errors.Join(err, w.Close())
	}
	s.processes = append(s.processes, c)
	s.ended.Go(func() { s.said.read(r) })
	s.ended.Go(func() { <-c.Done(); _ = w.Close() })
	return nil
}

// await polls while all processes are there.
func (s *serving) await(ctx context.Context, met func() (bool, error)) error {
	return poll(ctx, func() (bool, error) {
		if err := s.gone(); err != nil {
			return false, err
		}
		return met()
	})
}

// gone says that a process of the service has ended, nil while all are there.
func (s *serving) gone() error {
	for _, p := range s.processes {
		select {
		case <-p.Done():
			return fmt.Errorf("a process of the service ended before its time: %w", cmp.Or(p.Wait(), errors.New("without an error")))
		default:
		}
	}
	return nil
}

// moveByJob makes the job, and sees it to its end.
func (s *serving) moveByJob(ctx context.Context) error {
	defer s.client.Close()
	m := &move{demo: s.demo, watched: make(chan struct{}), workers: len(s.processes)}
	s.move = m
	if _, _, err := s.client.Create(ctx, api.NewJob{Name: jobName, Settings: quoted(jobSettings)}); err != nil {
		return fmt.Errorf("make the job: %w", err)
	}
	s.out.Printf("POST %s: job %s is made", api.PathJobs, jobName)
	done := make(chan error, 1)
	watching, end := context.WithCancel(ctx)
	defer end()
	go func() { defer close(m.watched); done <- s.watch(watching) }()
	defer func() { end(); <-m.watched }()
	m.over = func() error {
		select {
		case err := <-done:
			return cmp.Or(err, errors.New("the job ended before its time"))
		default:
			return s.gone()
		}
	}
	if err := inTurn(ctx, m.awaitFollowing, s.awaitExpiry, s.writeBurst, s.stopWriters); err != nil {
		return err
	}
	began := time.Now()
	s.out.Printf(`POST %s {"whenCaughtUp": true}`, strings.Replace(api.PathFinalize, "{name}", jobName, 1))
	if _, err := s.client.Finalize(ctx, jobName, true); err != nil {
		return fmt.Errorf("finalize the job: %w", err)
	}
	select {
	case err := <-done:
		m.finalizeTook = time.Since(began)
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func quoted(text string) json.RawMessage {
	var b bytes.Buffer
	_ = json.NewEncoder(&b).Encode(text) // a text always can be
	return b.Bytes()
}

// watch looks at the job until it is finished.
func (s *serving) watch(ctx context.Context) error {
	return s.await(ctx, func() (bool, error) {
		j, err := s.client.Job(ctx, jobName)
		switch {
		case err != nil:
			return false, fmt.Errorf("look at the job: %w", err)
		case j.State == service.Failed:
			return false, fmt.Errorf("the job has failed: %s: %s", j.Error, j.Hint)
		case j.Report == nil || j.Report.Status == nil:
			return false, nil
		}
		s.move.worker = cmp.Or(j.Worker, s.move.worker)
		s.move.take(*j.Report.Status)
		return j.State == service.Finished, nil
	})
}
