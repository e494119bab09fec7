// Package commands is a model of user commands: what the target of a job has to
// contain after commands that users ran on the source, under the job's rules for
// documents and operations. It knows commands, rules and documents. It knows
// nothing of oplog entries, and imports nothing of millrace.
//
// A [World] has the documents of both sides. Apply does one [Step], a user
// command, on the source, and what the rules make of it on the target. While the
// copy runs, what happens may be in it or not: the World then expects of each
// document one of several states.
//
// The table test runs every command under every rule, in the copy and in the
// change phase, on real servers, and compares. Package trial uses the model for
// jobs that have rules.
package commands
