// Package topology shows, plans and maintains the tree along which a replica set
// replicates: which member fetches the oplog from which.
//
// An [Observer] reads the set, [MakePlan] is a pure function from that to a tree,
// [Predict] returns what a tree costs, and a [Controller] brings the set into the
// planned tree and keeps it there. Nothing is stored in the cluster: sync sources
// are runtime state of its members.
package topology
