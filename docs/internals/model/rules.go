package main

import (
	"fmt"
	"strings"
)

// rules is a set of rules of the protocol. What a missing rule is replaced by
// is what millrace did before it had the rule.
type rules uint32

const (
	proveFirst rules = 1 << iota
	oneTerm
	fenceEachAttempt
	fenceNeverReused
	storeFenced
	lease
	endRuns
	lookProof
	allMembers
	boundWindow
	reachMajority
	rememberSkips
	holdPosition
	proveRefusal
	noteRefusal
	refusalMajority
	noteIntent
	intentMajority
	noteBefore
	changeMajority
	linearizable
	allRules rules = 1<<iota - 1
)

// today is what an earlier version of millrace did: saves compare terms after the
// position is written, one fence a process, a lease.
const today = storeFenced | lease | noteIntent

// ruleNames name the rules, in the order of their bits, with what each says.
func ruleNames() [][2]string {
	return [][2]string{
		{"prove-first", "a position is written after a majority write that proves it, not by it"},
		{"one-term", "all that an attempt is told was written in the term in which it began"},
		{"fence-each-attempt", "each attempt raises the fence, not each process"},
		{"fence-never-reused", "--restart takes over and resets in place; it does not begin at fence 1"},
		{"store-fenced", "writes of the job document carry the fence in their filter"},
		{"lease", "a taker waits until the old owner dares to send nothing new"},
		{"end-runs", "an attempt waits until no connection of an earlier one is left"},
		{"look-proof", "the look is followed by a majority write on the same connection, in the attempt's term"},
		{"all-members", "it looks at all members of the target, not at its primary only"},
		{"bound-window", "the window after a restart ends at the noted reach, not at the source's newest position"},
		{"reach-majority", "nothing is sent before the reach that covers it is majority-committed"},
		{"remember-skips", "updates of missing documents are remembered and judged when the window ends"},
		{"hold-position", "the saved position does not pass a remembered update"},
		{"prove-refusal", "a refusal is proven by a majority write before it is noted"},
		{"note-refusal", "a refusal that stops the job is noted before it stops"},
		{"refusal-majority", "that note is a majority write"},
		{"note-intent", "a schema change is noted, with the position before it, before it is sent"},
		{"intent-majority", "that note is a majority write, and its position is proven"},
		{"note-before", "a rename is noted with the collection that it found; a restart looks for that one"},
		{"change-majority", "a schema change is acknowledged by a majority"},
		{"linearizable", "the source's newest position is read behind a linearizable read"},
	}
}

func (r rules) has(x rules) bool { return r&x != 0 }

// parseRules reads "today" or "new", less or plus the comma-separated names.
func parseRules(set, without, with string) (rules, error) {
	var r rules
	switch set {
	case "today":
		r = today
	case "new":
		r = allRules
	default:
		return 0, fmt.Errorf("rules %q: today or new", set)
	}
	for _, n := range names(without) {
		b, err := ruleNamed(n)
		if err != nil {
			return 0, err
		}
		r &^= b
	}
	for _, n := range names(with) {
		b, err := ruleNamed(n)
		if err != nil {
			return 0, err
		}
		r |= b
	}
	return r, nil
}

func names(list string) []string {
	return strings.FieldsFunc(list, func(c rune) bool { return c == ',' })
}

func ruleNamed(name string) (rules, error) {
	for i, n := range ruleNames() {
		if n[0] == name {
			return 1 << i, nil
		}
	}
	return 0, fmt.Errorf("no rule is called %q", name)
}
