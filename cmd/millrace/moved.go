package main

import (
	_ "embed"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/mongo"
)

// workshopVariables are the variables of millrace-bench, one a line: make docs writes them.
//
//go:embed workshop.variables
var workshopVariables string

// movedCommand stands where a command was that millrace-bench has now.
func movedCommand(command string) *cobra.Command {
	return &cobra.Command{
		Use:                command,
		Short:              "Moved to millrace-bench " + command,
		Hidden:             true,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(*cobra.Command, []string) error {
			err := fmt.Errorf("millrace %s is now millrace-bench %s", command, command)
			return cli.WithCode(cli.ExitUsage, mongo.WithHint(err, "call millrace-bench with the same arguments"))
		},
	}
}
