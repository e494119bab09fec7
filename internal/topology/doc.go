// Package topology shows, plans and holds the tree along which a replica set
// replicates: who fetches its oplog from whom.
//
// The parts build on each other: an [Observer] reads the set as it is,
// [MakePlan] is a pure function from that to a tree, [Predict] says what a tree
// costs, and a [Controller] brings the set into the planned shape and keeps it
// there. Nothing is stored in the cluster: sync sources are runtime state of
// its members.
package topology
