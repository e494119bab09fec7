package main

import (
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/server"
)

func (a *app) resumeCommand() *cobra.Command {
	return a.controlCommand(&cobra.Command{
		Use:     "resume",
		Short:   "Let a paused sync go on",
		Example: `  millrace resume --job orders`,
	}, a.simple("resumed", (*server.Client).Resume))
}
