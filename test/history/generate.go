package history

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// Options shape what is generated.
type Options struct {
	Seed    uint64
	Writers int
	// Parts are the numbers of steps in each part, from part 0.
	Parts []int
	// Since reports whether both servers are at least of a version; nil is none
	// newer than 4.2.
	Since func(major, minor int) bool
	// NoCapped leaves capped collections out: after a kill a server's counts
	// of them are off, so that the servers roll them off differently.
	NoCapped bool
	// NoFreeOrder leaves histories of writers side by side out.
	NoFreeOrder bool
	// Streamed leaves out what change streams do not carry, see Step.Streams. With Silent it also leaves out what those
	// before 6.0 do not: see Step.Reported, and rules that need to know what was deleted.
	Streamed, Silent bool
	// Ruled says that the job has rules, by which Streamed leaves out more. Generate finds out by itself.
	Ruled bool
}

// Generate makes a history. The same options make the same one.
func Generate(o Options) History {
	g := NewGenerator(o)
	h := History{Seed: o.Seed, Job: g.settings(), Free: !o.NoFreeOrder && g.one(5)}
	g.o.Ruled = h.Job.ruled()
	g.marked = h.Job.SoftDelete
	h.Steps = g.Setup()
	for part, n := range o.Parts {
		g.begun = part > 0
		for i := range n {
			writer := g.r.IntN(o.Writers)
			if part > 0 && i > 0 && g.restarts > 0 && g.one(80) {
				g.restarts--
				h.Steps = append(h.Steps, Step{Part: part, Do: Restart})
			}
			s := g.Next(writer)
			s.Part = part
			h.Steps = append(h.Steps, s)
		}
	}
	return h
}

// Generator makes steps from a seed. It is not safe for concurrent use.
type Generator struct {
	r        *rand.Rand
	o        Options
	values   []bson.RawValue
	kinds    []kind
	total    int // weight of all kinds
	queues   map[int][]Step
	n        int // numbers what is written
	txns     int
	hot      int // documents that most writes are for
	size     int // documents of the larger collections
	bigTxns  int // that may still come
	restarts int
	ids      []any    // hard ones
	marked   []string // rules that leave what is deleted on the target
	begun    bool     // the job
}

// kind is a sort of thing that writers do, and how often.
type kind struct {
	name   string
	weight int
	do     func() []Step
}

// NewGenerator makes a generator. Which kinds of steps it makes and how often
// differs from seed to seed, so that rare combinations come up often in some.
func NewGenerator(o Options) *Generator {
	g := &Generator{r: rand.New(rand.NewPCG(o.Seed, 0x6d696c6c)), o: o, queues: map[int][]Step{}}
	values := Values()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		g.values = append(g.values, values[name])
	}
	g.drawIDs()
	g.hot = 1 + g.r.IntN(8)
	g.size = []int{20, 200, 1000, 3000}[g.r.IntN(4)]
	g.restarts = g.r.IntN(3)
	if g.one(12) {
		g.bigTxns = 2
	}
	quiet := g.one(3) // nothing holds up the changes, so that more of them fold
	for _, k := range g.allKinds() {
		k.weight *= []int{0, 1, 1, 2, 6}[g.r.IntN(5)]
		if quiet && slices.Contains([]string{"schema", "index", "extra"}, k.name) {
			k.weight = 0
		}
		if k.weight > 0 {
			g.kinds = append(g.kinds, k)
			g.total += k.weight
		}
	}
	if g.total == 0 {
		g.kinds = g.allKinds()[:1]
		g.total = g.kinds[0].weight
	}
	return g
}

func (g *Generator) allKinds() []kind {
	all := []kind{
		{"update", 40, g.update},
		{"hot", 60, g.hotUpdate},
		{"reborn", 20, g.reborn},
		{"insert", 20, g.insert},
		{"delete", 15, g.delete},
		{"replace", 15, g.replace},
		{"bulk", 10, g.bulk},
		{"multi", 8, g.multi},
		{"findAndModify", 10, g.findAndModify},
		{"unique", 25, g.unique},
		{"keys", 15, g.keys},
		{"folded", 15, g.folded},
		{"txn", 8, g.transaction},
		{"moving", 15, g.moving},
		{"extra", 25, g.extra},
		{"schema", 12, g.schema},
		{"index", 10, g.index},
		{"odd", 8, g.odd},
		{"hostile", 15, g.hostile},
		{"keyed", 10, g.keyed},
	}
	if !g.o.NoCapped {
		all = append(all, kind{"capped", 20, g.capped}, kind{"log", 15, g.log})
	}
	if g.since(5, 0) {
		all = append(all, kind{"series", 15, g.series}, kind{"applyOps", 8, g.applyOps})
	}
	return all
}

// Setup makes the collections that the steps are for.
func (g *Generator) Setup() []Step {
	steps := []Step{
		fillStep("plain", 0, g.size, g.r.IntN(300)),
		fillStep("hot", 0, g.hot, 10),
		fillStep("unique", 0, 40, 0),
		fillStep("moving", 0, g.size/2, 0),
		fillStep("txn1", 0, 60, 0),
		run(D("createIndexes", "unique", "indexes", A(D("key", D("k", 1), "name", "k_1", "unique", true)))),
		run(D("createIndexes", "plain", "indexes",
			A(D("key", D("n", 1), "name", "n_1"), D("key", D("v", 1), "name", "v_1")))),
		fillStep("keys", 0, 12, 0),
		run(D("createIndexes", "keys", "indexes", A(g.keyIndexes()...))),
		run(D("create", "txn2")),
		run(D("create", "folded", "collation", D("locale", "en", "strength", 2))),
	}
	if !g.o.NoCapped {
		create := D("create", "capped", "capped", true, "size", 4096+g.r.IntN(30000))
		if g.one(2) {
			create = append(create, bson.E{Key: "max", Value: 1 + g.r.IntN(40)})
		}
		steps = append(steps, run(create), fillStep("capped", 0, 50, g.r.IntN(300)))
	}
	if g.since(5, 0) {
		steps = append(steps, run(D("create", "series", "timeseries", D("timeField", "t", "metaField", "m"))))
	}
	return append(steps, g.hostileSetup()...)
}

// keyIndexes are unique indexes of several kinds over the same few fields.
func (g *Generator) keyIndexes() []any {
	all := []any{
		D("key", D("x", 1), "name", "x", "unique", true, "sparse", true),
		D("key", D("x", 1, "y", -1), "name", "x_y", "unique", true, "partialFilterExpression", D("y", D("$gt", 2))),
		D("key", D("w", 1), "name", "w", "unique", true, "partialFilterExpression", D("w", D("$exists", true))),
		D("key", D("z", 1), "name", "z", "unique", true, "sparse", true, "collation", D("locale", "en", "strength", 2)),
		D("key", D("q.k", 1), "name", "q", "unique", true, "sparse", true),
	}
	g.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:1+g.r.IntN(len(all))]
}

// Next is the writer's next step.
func (g *Generator) Next(writer int) Step {
	for {
		for len(g.queues[writer]) == 0 {
			g.queues[writer] = g.draw()
		}
		s := g.queues[writer][0]
		g.queues[writer] = g.queues[writer][1:]
		s.Writer = writer
		if (!g.o.Streamed || s.Streams(g.o.Ruled)) && (!g.o.Silent || !g.begun || s.Reported()) {
			return s
		}
	}
}

// draw chooses a kind by its weight.
func (g *Generator) draw() []Step {
	g.n++
	p := g.r.IntN(g.total)
	for _, k := range g.kinds {
		if p -= k.weight; p < 0 {
			return k.do()
		}
	}
	return nil
}

func (g *Generator) settings() Settings {
	s := Settings{Partitions: []int{0, 1, 2, 3, 16}[g.r.IntN(5)], Readers: 1 + g.r.IntN(4), Writers: 1 + g.r.IntN(4)}
	s.Held = g.one(2)
	if g.one(3) { // no view may come to read another database
		s.Exclude = pick(g, nil, nil, []string{"DB.extra1"}, []string{"DB-x.*"}, []string{"DB.txn1", "DB-x.extra0"},
			[]string{"DB.moved", "DB.v1"})
		s.Rename = pick(g, nil, []string{"DB=DB-to"}, []string{"DB-x=DB-y"}, []string{"DB.extra0=DB.other0"},
			[]string{"DB.moving=DB-y.moving", "DB.txn1=DB-x.other1"},
			[]string{"DB=DB-to", "DB.extra1=DB-to.other1", "DB.moved=DB-y.moved"},
			[]string{"DB.extra0=DB.one", "DB-x.extra1=DB-x.two", "DB.txn2=DB-y.three"})
	}
	if g.one(2) {
		s.Filter = g.Filters()
	}
	if g.one(2) {
		s.Fields = g.Fields()
	}
	for _, coll := range []string{"plain", "hot", "moving", "folded"} { // those without unique keys
		if g.one(4) {
			s.SoftDelete = append(s.SoftDelete, "DB."+coll+"=gone_at")
		}
	}
	g.histories(&s)
	if g.o.Silent {
		s.SoftDelete, s.History = nil, nil
	}
	if g.one(2) {
		s.Docs = int64(1 + g.r.IntN(2*g.size))
	} else {
		s.Bytes = int64(1000 + g.r.IntN(300*g.size))
	}
	return s
}

// HistoriesOf are rules for a database, by a seed: of which collections histories are kept,
// and what is left of other rules then.
func HistoriesOf(seed uint64, db string, filters, fields []string) (histories, filtersLeft, fieldsLeft []string) {
	s := Settings{}
	for _, rules := range []struct {
		from []string
		to   *[]string
	}{{filters, &s.Filter}, {fields, &s.Fields}} {
		for _, rule := range rules.from {
			*rules.to = append(*rules.to, "DB."+strings.TrimPrefix(rule, db+"."))
		}
	}
	NewGenerator(Options{Seed: seed}).histories(&s)
	for _, rules := range [][]string{s.History, s.Filter, s.Fields} {
		for i := range rules {
			rules[i] = db + strings.TrimPrefix(rules[i], "DB")
		}
	}
	return s.History, s.Filter, s.Fields
}

// histories are kept of collections to which no user's applyOps command goes, in place of
// other rules. One that is renamed gets the name of one of which a history is kept, too.
func (g *Generator) histories(s *Settings) {
	if strings.Contains(strings.Join(s.Fields, ""), `"fail"`) { // goes with a job that leaves documents out
		return
	}
	for _, colls := range [][]string{{"plain"}, {"folded"}, {"moving", "moved"}, {"txn2"}} {
		if !g.one(4) || colls[0] == "moving" && s.Exclude != nil {
			continue
		}
		for _, coll := range colls {
			other := func(rule string) bool { return strings.HasPrefix(rule, "DB."+coll+"=") }
			for _, rules := range []*[]string{&s.Filter, &s.Fields, &s.SoftDelete} {
				if *rules = slices.DeleteFunc(*rules, other); len(*rules) == 0 {
					*rules = nil // as a file has it
				}
			}
			s.History = append(s.History, "DB."+coll)
		}
	}
}

func (g *Generator) since(major, minor int) bool { return g.o.Since != nil && g.o.Since(major, minor) }

// one is true once in n times.
func (g *Generator) one(n int) bool { return g.r.IntN(n) == 0 }

func pick[T any](g *Generator, list ...T) T { return list[g.r.IntN(len(list))] }

func run(cmd bson.D) Step { return Step{Cmd: kit.Raw(cmd)} }

func list(steps ...Step) []Step { return steps }

func fillStep(coll string, from, to, pad int) Step {
	return Step{Do: Fill, Cmd: kit.Raw(Filling{coll, from, to, pad})}
}

func inserting(coll string, docs ...any) Step {
	return run(D("insert", coll, "documents", bson.A(docs)))
}

// updating changes one document, or more by options.
func updating(coll string, filter, update any, options ...any) Step {
	return run(D("update", coll, "updates", A(append(D("q", filter, "u", update), D(options...)...))))
}

func deleting(coll string, filter any, limit int) Step {
	return run(D("delete", coll, "deletes", A(D("q", filter, "limit", limit))))
}
