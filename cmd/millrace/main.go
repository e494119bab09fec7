// Command millrace moves and replicates MongoDB data.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(newApp().run(signals(), os.Args[1:])) }

// signals returns a context that ends at the first signal to interrupt, to
// terminate or to hang up; the second ends the program at once. What is durable
// by then stays: nothing is lost by it but time.
func signals() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	wanted := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		wanted = append(wanted, syscall.SIGHUP)
	}
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, wanted...)
	go func() {
		cancel(stopped{(<-caught).(syscall.Signal)})
		again := (<-caught).(syscall.Signal)
		fmt.Fprintln(os.Stderr, "millrace: stopped at once by a second signal")
		os.Exit(128 + int(again))
	}()
	return ctx
}

// build says what this program was built from.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildInfo() build {
	b := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// text is one line for people.
func (b build) text() string {
	return fmt.Sprintf("millrace %s (%s, %s)\n", b.Version, b.Go, b.Platform)
}

func (a *app) versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show what this program was built from",
		RunE: func(*cobra.Command, []string) error {
			b := buildInfo()
			return a.tell(output, b, b.text())
		},
	}
	bindOutput(cmd, &output, "`form` of the result: text or json", "text", "json")
	return cmd
}
