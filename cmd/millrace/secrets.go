package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
)

func (a *app) secretsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "secrets", Short: "Seal connection strings for the service", RunE: cli.Group}
	cmd.AddCommand(a.keygenCommand(), a.sealCommand())
	return cmd
}

func (a *app) keygenCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "keygen --out FILE",
		Short: "Make a key for sealed values",
		Long: `Writes a new key to a file that only its owner may read, and prints its recipient:
the text for which millrace secrets seal seals values. The recipient is no secret.
Give the file to each process that runs jobs, as --secrets-key. It has the form of
the age tool; the file may hold several keys, the newest for what is sealed from now
on and older ones for what was sealed before.`,
		Example: `  millrace secrets keygen --out millrace.key`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if out == "" {
				return cli.WithCode(cli.ExitUsage, errors.New("--out is missing: name the file for the key"))
			}
			key, recipient, err := config.NewKey()
			if err != nil {
				return err
			}
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // a key that is there stays
			if err != nil {
				return cli.WithCode(cli.ExitUsage, fmt.Errorf("write the key: %w", err))
			}
			_, err = fmt.Fprintf(f, "# recipient: %s\n%s\n", recipient, key)
			if err = errors.Join(err, f.Close()); err != nil {
				return fmt.Errorf("write the key: %w", err)
			}
			_, err = fmt.Fprintln(a.Stdout, recipient)
			return err
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "`file` for the key; it must not be there")
	return cmd
}

func (a *app) sealCommand() *cobra.Command {
	var recipient string
	var jobs []string
	cmd := &cobra.Command{
		Use:   "seal --recipient TEXT",
		Short: "Seal a connection string",
		Long: `Reads a connection string from the standard input, without showing it on a terminal,
and prints it sealed: source and target of a job of the service may have that value.
Only processes with the key can read it, and use it only for jobs whose names one of
the patterns of --job matches.`,
		Example: `  millrace secrets seal --recipient age1qy... --job 'shop-*' < uri.txt`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			value, err := a.secretInput(cmd.InOrStdin())
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			text, err := config.Seal(recipient, jobs, value)
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			_, err = fmt.Fprintln(a.Stdout, text)
			return err
		},
	}
	cmd.Flags().StringVar(&recipient, "recipient", "", "what millrace secrets keygen has printed")
	cmd.Flags().StringArrayVar(&jobs, "job", nil, "`pattern` of names of jobs that it is for, with * and ?; may be repeated, by default all")
	return cmd
}

// maxSecret bounds what is sealed, in bytes.
const maxSecret = 64 << 10

// secretInput reads a secret from the standard input, without an echo where that is a
// terminal.
func (a *app) secretInput(in io.Reader) (string, error) {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		_, _ = fmt.Fprint(a.Stderr, "value: ")
		raw, err := term.ReadPassword(int(f.Fd()))
		_, _ = fmt.Fprintln(a.Stderr)
		return strings.TrimSpace(string(raw)), err
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxSecret+1))
	if err == nil && len(raw) > maxSecret {
		err = fmt.Errorf("the value is longer than %d bytes", maxSecret)
	}
	return strings.TrimSpace(string(raw)), err
}
