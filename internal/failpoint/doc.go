// Package failpoint names the moments at which a crash, a pause or an error of millrace
// matters, so that a test can make one happen exactly there.
//
// Without the build tag failpoint its functions are empty: they are inlined to nothing and read
// nothing from the environment. With the tag, MILLRACE_FAILPOINTS holds rules, separated by
// semicolons. Or it holds @ and the name of a file with rules, which is read again when it
// changes:
//
//	name:n=action    at the n-th hit of the point
//	name:n+=action   from the n-th hit on
//	name=action      at each hit
//	*:n=action       at the n-th hit of all points together
//
// Some points have a subject: send.before/delete is the point send.before for deletes alone.
//
// These are the actions. The action kill ends the process as SIGKILL does. The action stop
// halts it as SIGSTOP does until SIGCONT. With sleep:300ms only the caller waits. With error,
// Err returns a transient error. The action note only logs. Each action is logged on standard
// error before it is done: "failpoint save.before hit 3: kill".
//
// The points:
//
//	take.before, take.after           the job gets an owner
//	reset.before, reset.after         --restart forgets the job
//	session.before                    the last owner's transactions are to be ended
//	load.after                        an attempt has read the checkpoint
//	position.before                   the applied position is to be read for a save
//	save.before, save.written,        a save: before the write, after it and before the
//	save.after                        terms are compared, at its end
//	note.before, note.written,        a note, likewise
//	note.after
//	beat.before, beat.after           the proof of ownership
//	slices.before, slices.written,    a save of the copy's slices: before, between the
//	slices.after                      slices and the job, at its end
//	phase.before, phase.after         the job goes on to its next phase
//	make.after                        a collection or view is made
//	indexes.after                     all indexes of one are built, where no documents are copied
//	window.after                      the window of a run is set
//	drain.before, drain.after         all that was fed is waited for
//	barrier.before                    a schema change waits for what comes before it
//	schema.before, schema.noted,      a schema change: before its note, after it, after
//	schema.after                      the change
//	rename.done                       the target has a new name; what is known of it does not follow yet
//	batch.before, batch.after         a batch of one partition
//	send.before, send.after           one command of a batch, about its name
//	commit.before, commit.after       the commit of a transaction of updates
//	copy.before, copy.after           a batch of the copy
//	letter.before, letter.after       a dead letter
//	shard.before, shard.made,         a collection of a sharded target: before it is sharded,
//	shard.noted, shard.held,          after it, the balancer noted, and disabled for it,
//	shard.split, shard.moved,         a bound, a range moved,
//	shard.placed                      all placed
//	zone.join, zone.range             a shard is to be in a zone, a range in one or in none
//	release.before                    the balancer is as before, and that is to be forgotten
//	final.before, final.after         the position at which to finalize
//	finalize.before, finalize.after   the last drain, the last save
//	expire.before, expire.after       the target gets expiries and limits, has them
package failpoint
