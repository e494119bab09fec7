//go:build !unix

package ycsb

import "time"

func cpuTime() time.Duration { return 0 }
