// Package topology shows, plans and maintains the tree along which a replica set replicates.
//
// An [Observer] reads the set. [MakePlan] is a pure function from that to a tree, and [Predict] returns what a tree
// costs. A [Controller] brings the set into the planned tree and keeps it there. Nothing is stored in the cluster:
// sync sources are runtime state of its members.
package topology
