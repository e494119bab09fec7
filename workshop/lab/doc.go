// Package lab starts real mongod clusters on the loopback interface for the
// demo, the tests and the benchmarks.
//
// A cluster owns its processes: [Cluster.Stop] ends them by process id, and on
// Linux the kernel ends them when the process that started them dies, whatever
// the reason. Clusters that must outlive their starter are made by [Store.Up] and
// found again by the [Store].
package lab
