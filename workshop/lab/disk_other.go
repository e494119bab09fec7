//go:build !linux

package lab

import "context"

// Disk is a small file system of a member's own; there are none here.
type Disk struct{}

func newDisk(string, int) (*Disk, error) { return nil, ErrNoDisk }

// Fill is not possible here.
func (d *Disk) Fill(context.Context) error { return ErrNoDisk }

// Free is not possible here.
func (d *Disk) Free() error { return ErrNoDisk }

// Path is empty here.
func (d *Disk) Path() string { return "" }

func (d *Disk) close() error { return nil }

// FilesInMemory reports that the directory of temporary clusters is a file system in
// memory.
func FilesInMemory() bool { return false }
