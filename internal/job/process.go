package job

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

// processStatus reads what this process uses from the operating system.
func processStatus() ProcessStatus {
	s := ProcessStatus{PID: os.Getpid(), Resident: resident()}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err == nil {
		s.CPUSeconds = (time.Duration(u.Utime.Nano()) + time.Duration(u.Stime.Nano())).Seconds()
		s.Peak = u.Maxrss << 10 // getrusage(2): kilobytes
	}
	if peak := peakResident(); peak > 0 {
		s.Peak = peak
	}
	return s
}

// peakResident reads VmHWM (proc(5)); 0 where that does not exist. The peak of
// getrusage includes that of the process that started this one, before exec.
func peakResident() int64 {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(raw, []byte("VmHWM:"))
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kb, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 0
	}
	return kb << 10
}

// resident reads the second field of /proc/self/statm (proc(5): resident
// pages); 0 where that does not exist.
func resident() int64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(raw)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// sample is what had been done at one moment.
type sample struct {
	at                  time.Time
	docs, copied        int64
	operations, opBytes int64
	cpu                 float64
}

// samples holds the last ten seconds, one a second.
type samples struct {
	ring [11]sample
	n    int
}

func (s *samples) add(x sample) {
	s.ring[s.n%len(s.ring)] = x
	s.n++
}

// rates are per second over what the ring holds.
func (s *samples) rates() (docs, copied, operations, opBytes, cpu float64) {
	if s.n < 2 {
		return 0, 0, 0, 0, 0
	}
	newest := s.ring[(s.n-1)%len(s.ring)]
	oldest := s.ring[0]
	if s.n > len(s.ring) {
		oldest = s.ring[s.n%len(s.ring)]
	}
	d := newest.at.Sub(oldest.at).Seconds()
	if d <= 0 {
		return 0, 0, 0, 0, 0
	}
	per := func(a, b int64) float64 { return max(float64(b-a)/d, 0) }
	return per(oldest.docs, newest.docs), per(oldest.copied, newest.copied),
		per(oldest.operations, newest.operations), per(oldest.opBytes, newest.opBytes), (newest.cpu - oldest.cpu) / d
}
