package bench

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// thisMachine reads what Linux tells of the machine; elsewhere less is known.
func thisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version()}
	m.Processor = lookup("/proc/cpuinfo", "model name")
	kb, err := strconv.ParseInt(strings.TrimSuffix(lookup("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	if err == nil {
		m.MemoryMB = kb >> 10
	}
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System += ", kernel " + strings.TrimSpace(string(raw))
	}
	return m
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
