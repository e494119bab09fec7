// Package spawn starts programs without millrace's settings in their environment, which may have passwords: other users
// and memory dumps may show the environment of a mongod.
package spawn

import (
	"context"
	"os/exec"
	"slices"
	"strings"
)

// Command is exec.Command without millrace's settings in the environment. No context ends the program.
func Command(name string, args ...string) *exec.Cmd {
	return clean(exec.Command(name, args...)) //nolint:noctx // see above
}

// CommandContext is exec.CommandContext without millrace's settings in the environment.
func CommandContext(ctx context.Context, name string, args ...string) *exec.Cmd {
	return clean(exec.CommandContext(ctx, name, args...))
}

func clean(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = slices.DeleteFunc(cmd.Environ(), func(v string) bool { return strings.HasPrefix(v, "MILLRACE_") })
	return cmd
}
