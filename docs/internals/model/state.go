package main

// Positions are numbers of events, 1 to 5; 0 is where the job began.

// doc is one document: which event wrote each of its parts. All zero is not
// there.
type doc struct{ made, a, b uint8 }

// foreign is the mark of a document that somebody else put on the target.
const foreign = 7

// Whether the collection is there, and made how. That is its identity, too: what
// is made in place of another is another.
const (
	collGone     uint8 = iota
	collMade           // by a create, or there from the beginning
	collImplicit       // by an insert: its options are lost
	collForeign        // by somebody else
	collBoth           // one under each name; no command makes one of them
)

// data is what a cluster has of the one collection.
type data struct {
	docs [2]doc
	coll uint8
	name uint8 // which of two names it has; 0 if it is gone
}

// under returns which collection has a name.
func (d *data) under(name uint8) uint8 {
	if d.name != name && d.coll != collBoth {
		return collGone
	}
	return d.coll
}

// jobDoc is the job's document on the target. Bits of refused are events.
type jobDoc struct {
	fence, start, applied, reach, intent, refused uint8
	before                                        uint8 // the collection that the noted rename found
	copying, opened                               bool
	final                                         uint8 // 1+position; 0: not finalized
}

// store is all that the target holds.
type store struct {
	data data
	job  jobDoc
}

// What an attempt, or the process that has none, does.
const (
	stDown    uint8 = iota // no process
	stIdle                 // a process between two attempts
	stRead                 // it has read the fence
	stRaise                // the fence is raised, a majority waited for
	stLook                 // owner of the fence; looks for earlier runs
	stLookOK               // nothing is left of them; proves that
	stReset                // --restart: resets the job's document
	stRun                  // copies or follows
	stStopped              // a conflict was reported
	stDone                 // finalized
)

// What the attempt's one control connection does while it runs.
const (
	ctIdle    uint8 = iota
	ctProof         // a majority write that proves what was written before
	ctPos           // the position is proven: write it
	ctSave          // the position, by a majority write that proves it itself
	ctIntent        // the note before a schema change
	ctChange        // the schema change
	ctVerdict       // a majority write, to prove what a refusal was judged by
	ctRefuse        // the note of a refusal
	ctFinal         // the phase "finalized"
)

// owner is one process with its attempt.
type owner struct {
	st, ctl uint8
	ack     uint8 // of the control write, where a majority is waited for
	frozen  bool  // its lease has passed: it sends nothing but the beat
	restart bool  // it was started with --restart, and has not reset the job yet
	copying bool

	run, fence, term uint8
	saved, acked     uint8 // position saved; events acknowledged, as bits
	window, reach    uint8
	intent, refused  uint8 // as loaded
	skipped          uint8 // updates of missing documents, not explained, as bits
	arg, carried     uint8 // of the control write: position or event; the reach that it notes
	start            uint8 // where the copy reads the source
	began            uint8 // state.sent when it began
	got, seen, taken uint8 // terms: of the control write; of all since the last save; of all before it
	finalAt, asked   uint8 // where finalize drains to; the source's newest majority write then
}

// How far a majority write has come.
const (
	ackNone   uint8 = iota
	ackWait         // executed
	ackYes          // majority-committed
	ackFailed       // its primary is none any more
)

// mixed says that writes of several terms were seen.
const mixed = 15

// message is a command on its way from an attempt that is no more.
type message struct {
	kind, arg, run, fence, member uint8
	put                           bool
}

const (
	msgData uint8 = iota + 1
	msgChange
	msgPos
	msgCopy
	msgFinal
)

// state is all of the world.
type state struct {
	now, safe    store // what the target's primary holds; what a majority holds
	term, member uint8
	own          [2]owner
	late         [3]message // sorted
	source, old  uint8      // newest majority write; where the isolated old primary stands, 0: none
	runs         uint8      // attempts so far
	sent         uint8      // newest event that was ever executed
	hand         uint8      // 1+document that was changed by hand, or handColl
	handAt       uint8      // sent at that time
	put          bool       // by hand: put, not removed
	reported     bool       // a conflict was reported to the operator
	final        bool       // the job was finalized, at:
	finalPos     uint8
	finalAsked   uint8

	// What may still happen.
	failovers, sourceFailovers, hands, restarts uint8
}

// handColl in state.hand is the collection.
const handColl = 3

// Operations of the source.
const (
	opInsert uint8 = iota
	opSetA
	opSetB
	opDelete
	opDrop
	opCreate
	opRename
)

// event is one operation on a document of the source, or on the collection. The doc
// of a rename is the new name.
type event struct{ op, doc uint8 }

func (e event) schema() bool { return e.op >= opDrop }

// exact applies event k as the source did.
func (d *data) exact(k uint8, e event) {
	x := &d.docs[e.doc]
	switch e.op {
	case opInsert:
		*x = doc{k, k, k}
		if d.coll == collGone {
			d.coll = collImplicit
		}
	case opSetA:
		if x.made != 0 {
			x.a = k
		}
	case opSetB:
		if x.made != 0 {
			x.b = k
		}
	case opDelete:
		*x = doc{}
	case opDrop:
		*d = data{}
	case opCreate:
		d.coll = collMade
	case opRename:
		if d.coll != collGone {
			d.name = e.doc
		}
	}
}
