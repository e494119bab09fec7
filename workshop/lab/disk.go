package lab

import (
	"errors"
	"path/filepath"
)

// ErrNoDisk says that this machine allows no small file systems: they need
// Linux and either root or user namespaces.
var ErrNoDisk = errors.New("lab: no small disks here (Linux, and root or user namespaces)")

// NewDisk mounts a file system of mb megabytes in memory at dir, which is made
// if there is none and seen as empty; use it by [Disk.Path]. The returned
// function ends it. Where there can be none the error is ErrNoDisk.
func NewDisk(dir string, mb int) (d *Disk, end func() error, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, nil, err
	}
	if d, err = newDisk(dir, mb); err != nil {
		return nil, nil, err
	}
	return d, d.close, nil
}

// Disk is the member's small disk, nil without Options.DiskMB.
func (m *Member) Disk() *Disk { return m.disk }

// startDisks gives each member a disk of its own, if the options want it.
func (c *Cluster) startDisks() error {
	for _, m := range c.members {
		if c.opts.DiskMB == 0 || m.disk != nil {
			continue
		}
		d, err := newDisk(m.DBPath, c.opts.DiskMB)
		if err != nil {
			return err
		}
		m.disk, m.DBPath = d, d.Path()
	}
	return nil
}
