package main

import (
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/server"
)

func (a *app) pauseCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:   "pause",
		Short: "Stop a running sync's work until resume",
		Long: `Stops reading and writing after a checkpoint. The sync keeps running and keeps
its place, as long as the source's oplog does: see the window in its status.`,
		Example: `  millrace pause --job orders`,
	}, a.simple("paused", (*server.Client).Pause))
}
