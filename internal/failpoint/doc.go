// Package failpoint names moments at which a test makes millrace crash, pause or fail.
//
// Without the build tag failpoint its functions are empty. With the tag, MILLRACE_FAILPOINTS holds rules, separated by
// semicolons, or @ and a file with rules, which is read again when it changes:
//
//	name:n=action    at the n-th hit of the point
//	name:n+=action   from the n-th hit on
//	name=action      at each hit
//	*:n=action       at the n-th hit of all points together
//
// A point with a subject also counts by itself: send.before/delete is send.before for deletes.
//
// The actions are kill (SIGKILL), stop (SIGSTOP, until SIGCONT), sleep:300ms for the caller, error, which makes Err
// return a transient error, and note. Each is logged on standard error before: "failpoint save.before hit 3: kill".
//
// The calls of Hit, HitOf and Err name the points. Those that do not say what they mean:
//
//	save.written, note.written,   between the write and the comparison of terms,
//	slices.written                between the slices and the job
//	indexes.after                 all indexes are built, where no documents are copied
//	drain.before, drain.after     the wait for all that was read
//	barrier.before                the wait of a schema change for earlier changes
//	schema.noted                  the intent of a schema change is stored
//	rename.done                   the target has a new name, the job's records do not
//	release.before                the balancer is as before, the job's records are not
//	final.before, final.after     the position at which to finalize
//	expire.before, expire.after   the target gets expiries and limits
//	filter.early                  an error: the source filters its oplog from the first skipped entry on
package failpoint
