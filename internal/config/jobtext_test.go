package config

import "testing"

// TestForJobs: a hint names settings, and no flags that a definition cannot have.
func TestForJobs(t *testing.T) {
	for text, want := range map[string]string{
		"drop them, or choose --on-existing merge or --on-existing drop": "drop them, or choose on-existing: merge or " +
			"on-existing: drop",
		"begin anew with --restart and --on-existing drop":  "begin anew as a new job with on-existing: drop",
		"use the same --mode, another --job, or --restart":  "use the same “mode”, a new job",
		"leave --zone out, or name routers":                 "leave “zone” out, or name routers",
		"or accept the risk with --allow-downgrade":         "or accept the risk with allow-downgrade: true",
		"e.g. --start-at 1700000000:1":                      "e.g. start-at: 1700000000:1",
		"give --shard a.b={\"x\": 1}":                       "give shard: a.b={\"x\": 1}",
		"choose another directory with --spool-dir":         "choose another directory with --spool-dir",
		"restart the source with --replSet and initiate it": "restart the source with --replSet and initiate it",
		"--until \"x\": want never":                         "“until” \"x\": want never",
		"no flag":                                           "no flag",
	} {
		if got := ForJobs(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestReadSettings: the settings of a definition come with the values that flags would have.
func TestReadSettings(t *testing.T) {
	got := ReadSettings("source: env:A\ninclude: [a, 'b.*']\nfilter:\n  a.b: {x: 1}\n")
	if len(got) != 3 || got[1].Name != "include" || len(got[1].Values) != 2 || got[2].Values[0] != `a.b={"x":1}` {
		t.Errorf("%+v", got)
	}
}
