// Package merge makes one source of several, such as the shards of a cluster: it
// puts their events into the order of cluster time. Of equal times, which shards
// have often, it takes those of the part that comes first in the list.
//
// An idle part delays the others: what it may still emit of a time is not known before
// it has passed it. So parts are asked to move on.
package merge
