// Package procstat reads what this process uses of the machine.
package procstat

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Usage is what a process uses.
type Usage struct {
	PID        int     `json:"pid"`
	CPUSeconds float64 `json:"cpuSeconds"`
	CPUPercent float64 `json:"cpuPercent"` // of one core, 10-second average; Read leaves it 0
	Resident   int64   `json:"residentBytes"`
	Peak       int64   `json:"peakResidentBytes"`
}

// Read asks the operating system. What it does not know is 0.
func Read() Usage {
	u := Usage{PID: os.Getpid()}
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err == nil {
		u.CPUSeconds = (time.Duration(r.Utime.Nano()) + time.Duration(r.Stime.Nano())).Seconds()
		u.Peak = r.Maxrss << 10 // getrusage(2): kilobytes
	}
	// getrusage counts the process that started this one, before exec. proc(5) does not.
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u
	}
	u.Resident = kilobytes(status, "VmRSS:")
	if peak := kilobytes(status, "VmHWM:"); peak > 0 {
		u.Peak = peak
	}
	return u
}

func kilobytes(status []byte, name string) int64 {
	_, rest, _ := bytes.Cut(status, []byte(name))
	var kb int64
	_, _ = fmt.Sscan(string(rest), &kb)
	return kb << 10
}
