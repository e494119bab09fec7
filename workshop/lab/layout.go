package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// layout is what a kept directory has to remember for its cluster to start
// again: a replica set knows its members by their addresses.
type layout struct {
	Name    string `json:"name"`
	Ports   []int  `json:"ports"`
	Proxies []int  `json:"proxies,omitempty"`
}

// layoutFile is the layout's file in the directory.
const layoutFile = "layout.json"

// readLayout returns the layout of a directory, nil if it holds no cluster.
func readLayout(dir string) (*layout, error) {
	name := filepath.Join(dir, layoutFile)
	data, err := os.ReadFile(name)
	if dir == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lab: read what the directory holds: %w", err)
	}
	l := &layout{}
	if err := json.Unmarshal(data, l); err != nil {
		return nil, fmt.Errorf("lab: read %s: %w", name, err)
	}
	return l, nil
}

// adopt makes options fit the cluster that the directory holds already.
func (l *layout) adopt(o Options) (Options, error) {
	if l == nil {
		return o, nil
	}
	if o.Name == "" {
		o.Name = l.Name
	}
	topo, err := parseTopology(o.Topology)
	if err != nil {
		return o, err
	}
	if o.Name != l.Name || topo.members != len(l.Ports) || o.Proxy != (len(l.Proxies) > 0) ||
		o.Port != 0 && o.Port != l.Ports[0] {
		return o, fmt.Errorf("lab: %s holds another cluster (%s, ports %v, proxies %v); start that one or choose another directory",
			o.Dir, l.Name, l.Ports, l.Proxies)
	}
	return o, nil
}

// newLayout chooses ports for a new cluster; with a fixed port the proxies
// follow the members.
func newLayout(held *leases, name string, members, port int, proxy bool) (*layout, error) {
	n := members
	if proxy {
		n *= 2
	}
	ports, err := held.choose(port, n)
	if err != nil {
		return nil, err
	}
	return &layout{Name: name, Ports: ports[:members], Proxies: ports[members:]}, nil
}

// save writes the layout down for the next start.
func (l *layout) save(dir string) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, layoutFile), data, 0o600); err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	return nil
}
