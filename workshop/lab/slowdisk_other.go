//go:build !linux

package lab

// slowDisk is not to be had here.
type slowDisk struct{}

func newSlowDisk(DiskSpeed) *slowDisk { return &slowDisk{} }

func (*slowDisk) confine() error { return ErrNoSlowDisk }

func (*slowDisk) close() {}

func (*slowDisk) use() DiskUse { return DiskUse{} }

func onFirstThread() bool { return false }
