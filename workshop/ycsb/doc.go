// Package ycsb is a load generator that is compatible with the Yahoo! Cloud
// Serving Benchmark: the same workload files and properties, the same keys for
// the same numbers, the same lines of output (docs/ycsb.md has what differs).
//
// A run has threads, each with a connection of its own and one operation under
// way at a time. Documents are made out of a block of random bytes and framed
// by hand over internal/wire, so that the client costs little beside the
// server. Latencies go into HDR histograms in a few shards; once a second they
// are drained into the totals and into a series over time.
//
// Sources: the wiki of YCSB ("Core Properties", "Core Workloads", "Running a
// Workload"), the README of its MongoDB binding, and output that its users
// have published; Gray et al., "Quickly Generating Billion-Record Synthetic
// Databases", SIGMOD 1994, for the zipfian generator.
package ycsb
