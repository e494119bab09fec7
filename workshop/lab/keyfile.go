package lab

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// keyFile is the secret by which members trust each other.
type keyFile struct {
	path   string
	secret string
}

// writeKeyFile makes a key file in the directory, or takes the one that an
// earlier start left there.
func writeKeyFile(dir string) (*keyFile, error) {
	k := &keyFile{path: filepath.Join(dir, "keyfile")}
	data, err := os.ReadFile(k.path)
	if err == nil {
		k.secret = string(data)
		return k, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	secret := make([]byte, 48)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("make the key file: %w", err)
	}
	k.secret = base64.StdEncoding.EncodeToString(secret)
	if err := os.WriteFile(k.path, []byte(k.secret), 0o600); err != nil {
		return nil, fmt.Errorf("write the key file: %w", err)
	}
	return k, nil
}
