package main

import (
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/seed"
	clitest "github.com/millrace/millrace/test/cli"
)

// stoppedMember is a directory that looks like that of a member that is shut down.
func stoppedMember(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	storage, err := bson.Marshal(
		bson.D{{Key: "storage", Value: bson.D{{Key: "engine", Value: "wiredTiger"}, {Key: "options", Value: bson.D{}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"storage.bson": string(storage), "WiredTiger.wt": "turtles",
		"collection-1.wt": "all the data", "mongod.lock": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ask sends an agent a request that opens a round, and gives the reply's status.
func ask(t *testing.T, address, host, token string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/v1/join",
		strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if req.Host = host; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// What an agent serves on loopback, it serves to its own user's pullers alone.
func TestSeedServeOnLoopback(t *testing.T) {
	b := newBench(t, nil)
	state, log := b.env["XDG_STATE_HOME"], new(clitest.Output)
	b.app.Stdout, b.app.Stderr = new(clitest.Output), log
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended, member := make(chan int, 1), stoppedMember(t)
	go func() {
		ended <- b.app.run(ctx, []string{"seed", "serve", "--dbpath", member, "--listen", "127.0.0.1:0"})
	}()
	var address string
	for deadline := time.Now().Add(20 * time.Second); address == ""; time.Sleep(5 * time.Millisecond) {
		if m := regexp.MustCompile(`msg=serving.* address=(\S+)`).FindStringSubmatch(log.String()); m != nil {
			address = m[1]
		} else if time.Now().After(deadline) {
			t.Fatal(log.String())
		}
	}

	// A stranger on this machine.
	if got := ask(t, address, address, ""); got != http.StatusUnauthorized {
		t.Errorf("without a token: status %d, want 401", got)
	}
	// The token is in a file that its owner alone can read.
	var files []string
	err := filepath.WalkDir(state, func(path string, d fs.DirEntry, err error) error {
		if info, e := d.Info(); e == nil && d.Type().IsRegular() {
			files = append(files, path)
			if mode := info.Mode().Perm(); mode != 0o600 {
				t.Errorf("%s has mode %o", path, mode)
			}
		}
		return err
	})
	if err != nil || len(files) != 1 {
		t.Fatalf("files with a token: %v, %v", files, err)
	}
	token, err := seed.ReadToken(files[0])
	if err != nil {
		t.Fatal(err)
	}
	// A web page whose name was made to point here, which knows the token somehow.
	for _, host := range []string{"evil.example", "evil.example:80", "10.0.0.1"} {
		if got := ask(t, address, host, token); got != http.StatusForbidden {
			t.Errorf("host %s: status %d, want 403", host, got)
		}
	}

	pull := func(state string) (code int, stderr string) {
		p := newBench(t, nil)
		p.env["XDG_STATE_HOME"] = state
		code = p.run(t.Context(), "seed", "pull", "--from", "http://"+address, "--dbpath", filepath.Join(t.TempDir(), "to"))
		return code, p.stderr.String()
	}
	if code, stderr := pull(t.TempDir()); code == cli.ExitOK || !strings.Contains(stderr, "--token-file") {
		t.Errorf("another user's pull: code %d\n%s", code, stderr)
	}
	if code, stderr := pull(state); code != cli.ExitOK {
		t.Errorf("pull: code %d\n%s", code, stderr)
	}
	if got := ask(t, address, "localhost", token); got != http.StatusOK {
		t.Errorf("with the token: status %d", got)
	}
	stop()
	if code := <-ended; code != cli.ExitOK {
		t.Errorf("serve: code %d\n%s", code, log)
	}
	if _, err := os.Stat(files[0]); err == nil {
		t.Error("the token outlives its agent")
	}
}
