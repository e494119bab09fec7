package seed

import (
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
)

// TestFilesAreHandedOn: a chain of three pullers gets files that change under the lock, and the source sends each
// block once.
func TestFilesAreHandedOn(t *testing.T) {
	dir := fakeMember(t)
	f := &changingFreezer{change: func() {
		must(t, os.WriteFile(filepath.Join(dir, "new.wt"), []byte("new"), 0o600))
		must(t, os.Remove(filepath.Join(dir, "empty.wt")))
		must(t, os.WriteFile(filepath.Join(dir, "WiredTiger.wt"), []byte("other turtles, and more of them"), 0o600))
	}}
	var sent atomic.Int64
	o := serve(t, fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: f}), "a token of some length",
		func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(&countingWriter{w, &sent}, r)
			})
		})
	g, ctx := errgroup.WithContext(t.Context())
	var dirs []string
	for range 3 {
		to := filepath.Join(t.TempDir(), "to")
		dirs = append(dirs, to)
		from, hands := client(t, o), newRelay(to)
		g.Go(func() error {
			_, err := Pull(ctx, from, PullOptions{DBPath: to, relay: hands})
			return err
		})
		o = serveRelay(t, hands)
	}
	must(t, g.Wait())
	for _, to := range dirs {
		sameFiles(t, dir, to)
	}
	alone := sent.Swap(0)
	_, err := Pull(t.Context(), client(t, serve(t, fakeAgent(t, dir, AgentOptions{}), "a token of some length",
		func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(&countingWriter{w, &sent}, r)
			})
		})), PullOptions{DBPath: filepath.Join(t.TempDir(), "one")})
	must(t, err)
	if one := sent.Load(); alone > 2*one {
		t.Errorf("the source has sent %d bytes to a chain of three, %d to one", alone, one)
	}
}

// TestHandingOnBeginsAgain: a copy that fails is followed by another one, which pullers downstream join.
func TestHandingOnBeginsAgain(t *testing.T) {
	dir := fakeMember(t)
	a := fakeAgent(t, dir, AgentOptions{})
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	hands := newRelay(first)
	from := client(t, serveRelay(t, hands))
	g, ctx := errgroup.WithContext(t.Context())
	g.Go(func() error {
		_, err := Pull(ctx, from, PullOptions{DBPath: second})
		return err
	})
	_, err := Pull(ctx, &damagingSource{Source: a}, PullOptions{DBPath: first, relay: hands})
	if err == nil {
		t.Fatal("damage is not found")
	}
	_, err = Pull(ctx, a, PullOptions{DBPath: first, relay: hands, NoClone: true})
	must(t, err)
	must(t, g.Wait())
	sameFiles(t, dir, second)
}

// TestRelayNamesNothingElse: pullers get nothing but what the manifest names.
func TestRelayNamesNothingElse(t *testing.T) {
	dir, to := fakeMember(t), filepath.Join(t.TempDir(), "to")
	hands := newRelay(to)
	_, err := Pull(t.Context(), fakeAgent(t, dir, AgentOptions{}), PullOptions{DBPath: to, relay: hands, NoClone: true})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(to, "secret.pem"), []byte("not for you"), 0o600))
	c := client(t, serveRelay(t, hands))
	m, err := c.Join(t.Context())
	must(t, err)
	for _, path := range []string{"secret.pem", "../secret", "/etc/hostname"} {
		err := c.Read(t.Context(), ReadRequest{Round: m.Round, Puller: m.Puller, Path: path, Have: []Sum{0}},
			func(Block) error { t.Errorf("%s is sent", path); return nil })
		if err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}

func serveRelay(t *testing.T, r *relay) ClientOptions {
	t.Helper()
	const token = "a token of some length"
	h, err := serveBlocks(r, http.NewServeMux(), token, true)
	must(t, err)
	return serveHandler(t, h, token)
}

type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *countingWriter) Write(b []byte) (int, error) {
	w.n.Add(int64(len(b)))
	return w.ResponseWriter.Write(b)
}
