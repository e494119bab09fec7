package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Help with the configuration file", RunE: cli.Group}
	cmd.AddCommand(&cobra.Command{
		Use:   "schema",
		Short: "Write the JSON Schema of the configuration file, for editors",
		Long: `Writes a JSON Schema (draft 2020-12) of the file that --config names, with all
settings, rules, defaults and their meaning. An editor that knows it completes
keys and marks mistakes. Editors with yaml-language-server take it from the
file's first line. The packages bring it along as well:

  # yaml-language-server: $schema=/usr/share/millrace/millrace.schema.json`,
		Example: `  millrace config schema > millrace.schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			schema, err := config.Schema()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Stdout, "%s\n", schema)
			return err
		},
	})
	return cmd
}
