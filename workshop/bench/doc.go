// Package bench measures what millrace does against what the servers allow.
//
// A scenario prepares data on a source, then runs contenders in turn, round
// after round: the scenario's ceiling (lean code of its own over internal/wire
// that does the least work that anybody would have to ask of the servers),
// millrace as a process of its own, and other tools whose binaries are given.
// Everything a round starts from is made equal before it. Nothing here judges:
// figures are reported, with their spread and with what exactly was measured.
//
// All data live in one database, mrbench, that the bench makes and drops.
package bench
