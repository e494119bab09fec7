// Package trial runs jobs through histories of failures, as data: what writers
// do on both sides, what happens to the servers, to the network and to millrace
// itself, in one order. At the end all is healed, the job is run to its end and
// the clusters are compared, so that a difference that nobody was told of is
// found. A trial that fails is shrunk to the fewest events and printed as a
// script that runs by itself.
//
// Themes make trials from a seed, each aimed at one way to lose data.
package trial
