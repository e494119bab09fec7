// Package cli has the tests that the command line of every program passes, and what its
// own tests start one with. It is for tests only.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
)

// Output is standard output or error that several goroutines write to.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Line is the command line of one program.
type Line struct {
	Root func() *cobra.Command
	Run  func(ctx context.Context, args []string) int
}

// New makes the command line of a program in the world that set gives it.
type New func(set func(*cli.Program)) Line

// World is a command line in a world of its own.
type World struct {
	Line
	Env            map[string]string
	Stdout, Stderr *Output
}

// Start makes a world that lasts as long as the test.
func Start(t *testing.T, program New) *World {
	t.Helper()
	w := &World{Env: map[string]string{"XDG_STATE_HOME": t.TempDir(), "XDG_CONFIG_HOME": t.TempDir()}, Stdout: new(Output),
		Stderr: new(Output)}
	w.Line = program(func(p *cli.Program) {
		p.Stdout, p.Stderr, p.Environ, p.Columns = w.Stdout, w.Stderr, nil, func() int { return 80 }
		p.LookupEnv = func(name string) (string, bool) { v, ok := w.Env[name]; return v, ok }
	})
	return w
}

// Documents decodes what a command printed as JSON.
func Documents(t *testing.T, out string) (all []map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(out))
	for {
		var doc any
		if err := d.Decode(&doc); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Errorf("not JSON: %v\n%s", err, out)
			return all
		}
		m, _ := doc.(map[string]any)
		all = append(all, m)
	}
}

// FailuresAreJSON checks that however a command fails, --output json has one document on
// standard output, with the error that standard error has. The arguments with which each
// command fails go by its path, which may end in blanks. None may be missing that has
// --output.
func FailuresAreJSON(t *testing.T, program New, cases map[string]string) {
	root := Start(t, program).Root()
	each(root, func(cmd *cobra.Command) {
		path := pathOf(cmd)
		if _, ok := cases[path]; !ok && cmd.Flags().Lookup("output") != nil {
			t.Errorf("%s has --output and is not tried", path)
		}
	})
	for path, args := range cases {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			w := Start(t, program)
			code := w.Run(t.Context(), append(strings.Fields(path+" "+args), "--output", "json"))
			docs := Documents(t, w.Stdout.String())
			if code == cli.ExitOK || len(docs) != 1 || docs[0]["error"] == nil {
				t.Fatalf("code %d, stdout %q, stderr %s", code, w.Stdout, w.Stderr)
			}
			if first, _, _ := strings.Cut(docs[0]["error"].(string), "\n"); !strings.Contains(w.Stderr.String(),
				root.Name()+": "+first) {
				t.Errorf("%q is not in %s", first, w.Stderr)
			}
		})
	}
}

func each(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, do)
	}
}

// pathOf is the path of a command below its program.
func pathOf(cmd *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()), " ")
}
