// Command millrace-bench measures millrace, loads servers, and starts clusters for both.
package main

import (
	"context"
	_ "embed"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
)

const name = "millrace-bench"

// productVariables are the variables of millrace, one a line: make docs writes them.
//
//go:embed product.variables
var productVariables string

func main() { os.Exit(newApp().run(cli.Signals(name), os.Args[1:])) }

type app struct{ cli.Program }

func newApp() *app {
	a := &app{cli.New(name)}
	a.Foreign = strings.Fields(productVariables)
	return a
}

func (a *app) run(ctx context.Context, args []string) int {
	return a.Program.Run(ctx, javaFlags(args), a.rootCommand)
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Short: "Measure millrace and servers, and start clusters to do it on",
		Long: strings.TrimSpace(`
millrace-bench is the workshop of millrace. It measures millrace against what the
servers allow and against other tools. It loads servers with the workloads of
YCSB, and starts real mongod clusters on this machine.

Every flag is also an environment variable: --rounds is MILLRACE_ROUNDS. A flag
wins over the environment. Keep passwords in the environment: other users of the
machine can see flags.

Exit codes: 0 done; 1 failed, or differences found; 2 wrong usage; 128 plus the
number of the signal that ended it: 130 SIGINT, 143 SIGTERM, 129 SIGHUP.

With --output json, standard output has one JSON document, however the command
ends. A failure has error and hint.`),
	}
	root.AddCommand(a.ycsbCommand(), a.benchCommand(), a.labCommand())
	a.Complete(root)
	return root
}
