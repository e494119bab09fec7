package topology

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/outfile"
)

// Memory records the tree of a set before it was changed.
type Memory struct {
	Set     string            `json:"set"`
	ID      string            `json:"id"`
	At      time.Time         `json:"at"`
	Primary string            `json:"primary"`
	Tree    map[string]string `json:"tree"`
}

// Remember records the tree that a set has.
func Remember(set *Set) *Memory {
	m := &Memory{Set: set.Name, ID: set.ID, At: set.At, Tree: set.Tree()}
	if p := set.Primary(); p != nil {
		m.Primary = p.Host
	}
	return m
}

// plan leads back to the recorded tree. Members that were under the primary come under today's; one whose source
// is unfit is left to the server.
func (m *Memory) plan(set *Set) *Plan {
	plan := &Plan{Set: set.Name, Policy: "as it was"}
	primary := set.Primary()
	if primary == nil {
		return plan
	}
	plan.Primary = primary.Host
	tree := map[string]string{}
	for _, mem := range set.Members {
		src := m.Tree[mem.Host]
		if src == m.Primary || set.Member(src) == nil || src == mem.Host {
			src = primary.Host
		}
		if _, known := m.Tree[mem.Host]; known && mem.Host != primary.Host && mem.State == StateSecondary && mem.Healthy {
			tree[mem.Host] = src
		}
	}
	for host, src := range tree {
		hops, _, ok := pathOf(set, tree, primary, host)
		if s := set.Member(src); !ok || !s.Healthy || s.State != StatePrimary && s.State != StateSecondary {
			continue
		}
		plan.Seats = append(plan.Seats,
			Seat{Host: host, Source: src, Depth: int(hops), Current: set.Member(host).Source, Why: "as it was"})
	}
	slices.SortFunc(plan.Seats, func(a, b Seat) int { return cmp.Or(a.Depth-b.Depth, strings.Compare(a.Host, b.Host)) })
	return plan
}

// Save stores the tree in a directory and returns the stored one: an earlier tree of the same set stays.
func (m *Memory) Save(dir string) (*Memory, error) {
	if kept, err := LoadMemory(dir, m.Set, m.ID); err != nil || kept != nil {
		return kept, err
	}
	raw, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		path := memoryPath(dir, m.Set, m.ID)
		err = outfile.Replace(path, func(f *os.File) error { _, err := f.Write(raw); return err })
	}
	if err != nil {
		return nil, fmt.Errorf("cannot store the tree of %s: %w", m.Set, err)
	}
	return m, nil
}

// LoadMemory reads the stored tree of a set, nil if there is none.
func LoadMemory(dir, set, id string) (*Memory, error) {
	raw, err := os.ReadFile(memoryPath(dir, set, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var m Memory
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the stored tree of %s: %w", set, err)
	}
	return &m, nil
}

// Forget removes the stored tree of a set, if there is one.
func (m *Memory) Forget(dir string) error {
	err := os.Remove(memoryPath(dir, m.Set, m.ID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the stored tree of %s: %w", m.Set, err)
	}
	return nil
}

// memoryPath never leads out of the directory: names come from a server.
func memoryPath(dir, set, id string) string {
	name := regexp.MustCompile(`[^-_0-9A-Za-z]`).ReplaceAllString(cmp.Or(id, set), "_")
	return filepath.Join(dir, name+".json")
}
