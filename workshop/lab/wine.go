package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/spawn"
)

// Where only a Windows build can be fetched, wine runs it: as the very process
// that was started, with the same arguments and files, of which Windows sees
// the whole tree as its drive Z. Its helpers end with the last program they
// serve. For compatibility, never for timings.

// errNoWine says how to go on without wine.
var errNoWine = errors.New("wine64, which runs its Windows build, is not installed; " +
	"install it (Debian, Ubuntu: apt-get install --no-install-recommends wine64)")

// ErrNoTLS is what a cluster with TLS ends with whose mongod wine runs. Windows decodes
// the servers' keys and builds their certificate chains; wine (8.0) refuses a key in PKCS 8
// ("CryptDecodeObjectEx failed"), and with one in PKCS 1 the chains of an authority
// ("CertCreateCertificateChainEngine failed: Invalid parameter").
var ErrNoTLS = errors.New("TLS is not to be had from a mongod that wine runs, for wine makes no certificate chains " +
	"(CertCreateCertificateChainEngine failed: Invalid parameter); leave it out, or use an older version")

// wineScript is the file's name by which a Windows build is started.
const wineScript = "mongod-by-wine"

// byWine reports whether the cluster's servers are Windows builds.
func (c *Cluster) byWine() bool { return filepath.Base(c.mongod) == wineScript }

// findWine returns the program that runs Windows ones. Debian keeps it from PATH
// unless the package wine is installed too.
func findWine() (string, error) {
	for _, name := range []string{"wine64", "/usr/lib/wine/wine64"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoWine
}

// ensureWine makes, once, in home the script that starts the mongod.exe there,
// and in prefix what wine takes for a Windows system (700 MB).
func ensureWine(ctx context.Context, wine, home, prefix string) (script string, err error) {
	script = filepath.Join(home, wineScript)
	if err := os.MkdirAll(prefix, 0o700); err != nil {
		return "", fmt.Errorf("make wine's directory: %w", err)
	}
	unlock, err := lockFile(ctx, prefix+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	env := []string{
		"WINEPREFIX=" + prefix, "HOME=" + prefix, // its folders link to none of the user's
		"WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml,winemenubuilder.exe=;vcruntime140,vcruntime140_1,msvcp140=native",
	}
	// The mark comes last, so a directory that has it is whole.
	mark := filepath.Join(prefix, "whole")
	if _, err := os.Stat(mark); err != nil {
		for _, args := range [][]string{{"wineboot", "-i"}, {"winecfg", "-v", "win10"}} {
			cmd := spawn.CommandContext(ctx, wine, args...)
			cmd.Env = append(cmd.Env, env...)
			if err := cmd.Run(); err != nil { // its helpers would keep a pipe open
				return "", fmt.Errorf("%s %s: %w", wine, strings.Join(args, " "), err)
			}
		}
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			return "", fmt.Errorf("make wine's directory: %w", err)
		}
	}
	// Paths are absolute, and those without a drive are of the one that is /.
	text := "#!/bin/sh\ncd /\n"
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		text += "export " + name + "=" + shellQuote(value) + "\n"
	}
	text += "exec " + shellQuote(wine) + " " + shellQuote(filepath.Join(home, "mongod.exe")) + ` "$@"` + "\n"
	if old, err := os.ReadFile(script); err == nil && string(old) == text {
		return script, nil // and another process may be starting it
	}
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		return "", fmt.Errorf("make the script that starts it: %w", err)
	}
	return script, nil
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
