// Package spawn makes the commands of all programs that millrace starts. Its
// settings may hold passwords, and are none of their business: others see the
// environment of a program that runs on, such as a mongod, and read it in dumps.
package spawn

import (
	"context"
	"os/exec"
	"slices"
	"strings"
)

// Command is exec.Command without millrace's settings in the environment.
// Nothing ends the program but its own reasons, and who waits for it.
func Command(name string, args ...string) *exec.Cmd {
	return clean(exec.Command(name, args...)) //nolint:noctx // see above
}

// CommandContext is exec.CommandContext without millrace's settings in the
// environment.
func CommandContext(ctx context.Context, name string, args ...string) *exec.Cmd {
	return clean(exec.CommandContext(ctx, name, args...))
}

func clean(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = slices.DeleteFunc(cmd.Environ(), func(v string) bool { return strings.HasPrefix(v, "MILLRACE_") })
	return cmd
}
