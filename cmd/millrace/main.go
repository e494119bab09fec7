// Command millrace moves and replicates MongoDB data.
package main

import (
	"os"

	"github.com/millrace/millrace/internal/cli"
)

// name is that of the program.
const name = "millrace"

func main() { os.Exit(newApp().run(cli.Signals(name), os.Args[1:])) }
