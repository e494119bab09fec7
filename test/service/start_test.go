package service

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/test"
)

// TestEveryStart: serve serves, or exits within ten seconds and says why: when another
// program has its port or that of NATS, and when a signal arrives at any moment of the
// start. A machine under load gets thrice that. MILLRACE_TEST_SEED draws other moments.
func TestEveryStart(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	const limit = 30 * time.Second
	bin := test.BuildMillrace(t)
	var seed uint64 = 1
	if s := os.Getenv("MILLRACE_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	taken, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	port := taken.Addr().String()
	starts := map[string]func(t *testing.T){}
	for i := range 12 {
		worker := [][]string{nil, {"--no-worker"}}[i%2]
		starts[fmt.Sprint("port taken/", i)] = func(t *testing.T) {
			p := test.Start(t, bin, append([]string{"serve", "--data-dir", t.TempDir(), "--listen", port}, worker...)...)
			rejected(t, p, limit, "--listen")
		}
		after := time.Duration(rng.Int64N(int64(1200 * time.Millisecond)))
		starts[fmt.Sprintf("signal/%s", after)] = func(t *testing.T) {
			p := test.Start(t, bin, append([]string{"serve", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0"},
				worker...)...)
			select {
			case <-time.After(after): // the moment is the point of it
			case <-p.Done():
			}
			_ = syscall.Kill(p.Pid(), syscall.SIGTERM)
			exits(t, p, limit)
		}
	}
	starts["NATS port taken"] = func(t *testing.T) {
		p := test.Start(t, bin, "serve", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--nats-listen", port)
		rejected(t, p, limit, "--nats-listen")
	}
	slots := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for name, start := range starts {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t.Run(name, start)
		})
	}
	wg.Wait()
}

// exits fails the test where the process runs on.
func exits(t *testing.T, p *test.Process, limit time.Duration) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(limit):
		t.Fatalf("runs on after %s", limit)
	}
}

// rejected fails the test unless the process exits with an error that names a flag.
func rejected(t *testing.T, p *test.Process, limit time.Duration, flag string) {
	t.Helper()
	exits(t, p, limit)
	if out := p.Output(); p.ExitCode() <= 0 || !strings.Contains(out, "in use") || !strings.Contains(out, flag) {
		t.Errorf("exit code %d: %s", p.ExitCode(), out)
	}
}
