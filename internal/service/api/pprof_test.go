package api

import (
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/test/jobtest"
)

// TestProfiles: they are served when that was asked for, to those who have the
// token, and for longer than any other reply may take.
func TestProfiles(t *testing.T) {
	get := func(s *Single, path, token string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	for _, on := range []bool{false, true} {
		s, err := Listen(t.Context(), SingleOptions{Address: "127.0.0.1:0",
			Log: slog.New(slog.DiscardHandler), PProf: on})
		if err != nil {
			t.Fatal(err)
		}
		s.deadline = 500 * time.Millisecond
		go func() { _ = s.Serve(t.Context(), jobtest.New(job.Status{})) }()
		want := map[bool]int{false: http.StatusNotFound, true: http.StatusOK}[on]
		for _, path := range []string{"", "heap", "goroutine?debug=2", "profile?seconds=1"} {
			if code, body := get(s, PathProfiles+path, s.Token()); code != want || body == "" {
				t.Errorf("pprof %v: %s: status %d, want %d: %.100s", on, path, code, want, body)
			}
		}
		if code, body := get(s, PathProfiles+"cmdline", s.Token()); code != http.StatusNotFound ||
			strings.Contains(body, os.Args[0]) {
			t.Errorf("the command line: status %d: %.100s", code, body)
		}
		if code, _ := get(s, PathProfiles+"heap", "wrong"); on && code != http.StatusUnauthorized {
			t.Errorf("without the token: status %d", code)
		}
	}
}
