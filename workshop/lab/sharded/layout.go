package sharded

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// layout is what a kept directory has to remember beside what each set does.
type layout struct {
	Name   string   `json:"name"`
	Shards []string `json:"shards"`
	Next   int      `json:"next"` // the number of the next shard
}

// layoutFile is the layout's file in the directory.
const layoutFile = "sharded.json"

// openDir makes the directory ready, and reads which shards an earlier start left
// there: some may have joined and gone since the first one.
func (c *Cluster) openDir() (err error) {
	if c.dir, err = filepath.Abs(c.opts.Dir); err != nil {
		return fmt.Errorf("lab: find the data directory: %w", err)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("lab: make the data directory: %w", err)
	}
	c.secrets = c.dir
	data, err := os.ReadFile(filepath.Join(c.dir, layoutFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lab: read what the directory holds: %w", err)
	}
	var l layout
	if err := json.Unmarshal(data, &l); err != nil {
		return fmt.Errorf("lab: read %s: %w", filepath.Join(c.dir, layoutFile), err)
	}
	if c.opts.Name != "" && c.opts.Name != l.Name {
		return fmt.Errorf("lab: %s holds another cluster (%s); start that one or choose another directory", c.dir, l.Name)
	}
	c.opts.Name, c.names, c.next, c.kept = l.Name, l.Shards, l.Next, true
	return nil
}

// save writes the layout down for the next start.
func (c *Cluster) save() error {
	if c.dir == "" {
		return nil
	}
	names := c.ShardNames()
	c.mu.Lock()
	defer c.mu.Unlock()
	data, err := json.Marshal(layout{Name: c.Name(), Shards: names, Next: c.next})
	if err == nil {
		err = os.WriteFile(filepath.Join(c.dir, layoutFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	return nil
}

// randomName is the name of a cluster that was given none.
func randomName() (string, error) {
	b := make([]byte, 4)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("lab: read random bytes: %w", err)
	}
	return "sh" + hex.EncodeToString(b), nil
}
