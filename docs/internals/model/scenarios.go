package main

// scenario is a world with its name.
type scenario struct {
	name, says string
	large      bool // not for the tests
	world      world
}

// scenarios are the worlds that are searched. Together they hold all that the
// model knows; each holds what can be searched whole.
func scenarios() []scenario {
	data := []event{{opInsert, 0}, {opSetA, 0}, {opInsert, 1}, {opDelete, 0}, {opSetB, 1}}
	update := []event{{opInsert, 0}, {opSetA, 0}, {opInsert, 1}, {opSetB, 0}, {opSetA, 1}}
	schema := []event{{opInsert, 0}, {opDrop, 0}, {opCreate, 0}, {opInsert, 0}, {opInsert, 1}}
	rename := []event{{opInsert, 0}, {opRename, 1}, {opInsert, 1}}
	base := world{runs: 3, late: 2, crash: true, retry: true}
	with := func(script []event, change func(*world)) world {
		w := base
		w.script, w.sourceStart = script, uint8(len(script))
		change(&w)
		return w
	}
	return []scenario{
		{"late", "kills, interruptions, late commands", false,
			with(data, func(w *world) {})},
		{"failover", "kills, interruptions, late commands, one failover of the target", false,
			with(data, func(w *world) { w.failovers = 1 })},
		{"failover-back", "two failovers, so that a member is primary again", false,
			with([]event{{opInsert, 0}, {opDelete, 0}}, func(w *world) { w.failovers, w.late = 2, 1 })},
		{"conflict", "a document is removed by hand on the target", false,
			with(update, func(w *world) { w.hands = 1 })},
		{"conflict-failover", "the same, and one failover of the target", false,
			with(update[:4], func(w *world) { w.hands, w.failovers = 1, 1 })},
		{"foreign", "somebody puts a document of his own on the target", false,
			with(update[:3], func(w *world) { w.hands, w.handDoc, w.handPut, w.failovers = 1, 1, true, 1 })},
		{"schema", "a drop and a create, one failover of the target", false,
			with(schema, func(w *world) { w.failovers = 1 })},
		{"rename", "the source renames a collection that somebody drops on the target", false,
			with(rename, func(w *world) { w.hands, w.handDrop = 1, true })},
		{"rename-failover", "the same, and one failover of the target", false,
			with(rename, func(w *world) { w.hands, w.handDrop, w.failovers = 1, true, 1 })},
		{"refusal", "a document comes and goes, one failover of the target", false,
			with([]event{{opInsert, 0}, {opSetA, 0}, {opDelete, 0}}, func(w *world) { w.failovers, w.late = 1, 1 })},
		{"restart", "a process is started with --restart beside the owner", false,
			with(data, func(w *world) { w.restarts = 1 })},
		{"source", "the source writes on, and fails over once", false,
			with(data[:4], func(w *world) { w.sourceStart, w.sourceFailovers, w.runs = 2, 1, 2 })},
		{"restart-failover", "the same, and one failover of the target", true,
			with(data[:4], func(w *world) { w.restarts, w.failovers, w.late = 1, 1, 1 })},
		{"both-sides", "five operations, one failover on either side", true,
			with(data, func(w *world) { w.failovers, w.sourceFailovers, w.runs, w.sourceStart = 1, 1, 2, 4 })},
		{"together", "five operations, a failover on either side, a change by hand", true,
			with(data, func(w *world) { w.failovers, w.sourceFailovers, w.hands, w.runs, w.sourceStart = 1, 1, 1, 2, 4 })},
	}
}
