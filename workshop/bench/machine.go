package bench

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// ThisMachine reads what Linux tells of the machine; elsewhere less is known.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version()}
	m.Processor = lookup("/proc/cpuinfo", "model name")
	m.MemoryMB = kilobytes("/proc/meminfo", "MemTotal") >> 20
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System += ", kernel " + strings.TrimSpace(string(raw))
	}
	return m
}

// kilobytes is a "name: n kB" of a file, in bytes; 0 where there is none.
func kilobytes(file, name string) int64 {
	kb, err := strconv.ParseInt(strings.TrimSuffix(lookup(file, name), " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return kb << 10
}

// lookup finds the first "name: value" of a file.
func lookup(file, name string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(raw) {
		if k, v, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
