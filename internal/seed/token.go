package seed

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
)

// ReadToken reads an agent's secret from a file.
func ReadToken(name string) (string, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 16 {
		return "", mongo.WithHint(fmt.Errorf("the token in %s is too short", name), "make one of 16 characters or more: openssl rand -hex 32")
	}
	return token, nil
}

// TokenFile is where an agent that made its own token puts it, and where a
// puller of the same user looks for it: dir is the user's, address the agent's
// host:port on loopback. A machine has one agent to a port.
func TokenFile(dir, address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		port = "default"
	}
	return filepath.Join(dir, "seed-"+filepath.Base(port)+".token")
}

// WriteToken makes a token and puts it into a file that its owner alone can
// read; remove takes the file away, unless another agent's has replaced it.
func WriteToken(name string) (token string, remove func() error, err error) {
	token = rand.Text()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return "", nil, fmt.Errorf("write the token: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".token-*") // with mode 0600
	if err != nil {
		return "", nil, fmt.Errorf("write the token: %w", err)
	}
	_, err = f.WriteString(token + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name) // a reader sees a whole one
	}
	if err != nil {
		return "", nil, fmt.Errorf("write the token: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return token, func() error {
		if now, err := ReadToken(name); err != nil || now != token {
			return nil //nolint:nilerr // it is gone, or no longer ours
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the token: %w", err)
		}
		return nil
	}, nil
}
