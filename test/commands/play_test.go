package commands_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	. "github.com/millrace/millrace/test/commands"
	"github.com/millrace/millrace/test/kit"
)

// play is a cell under way: its databases begin with base.
type play struct {
	cell
	ctx    context.Context
	bed    *bed
	base   string
	world  *World
	writer *Writer // of random commands
	log    []string
	err    error // of the play itself
}

// pattern is that of the rules: of all collections of the cell's databases, or of those
// that users have alone, whose names are single characters.
func (c cell) pattern() string {
	named := (len(c.command.name)+len(c.set.name)+len(c.phase))%2 == 0
	if c.command.stops || named {
		return "?"
	}
	return "*"
}

// ns is a namespace: db is "" for the main database, or a suffix. Database free is
// beyond the rules.
func (p *play) ns(db, coll string) string {
	switch db {
	case "":
		return p.base + "." + coll
	case "free":
		return "free-" + p.base + "." + coll
	}
	return p.base + "-" + db + "." + coll
}

func (p *play) databases() []string {
	return []string{p.base, p.base + "-x", "free-" + p.base}
}

// failure ends a play.
type failure struct{ err error }

// do does a step on the source and in the model.
func (p *play) do(s Step) {
	p.log = append(p.log, s.String())
	if err := p.bed.run(p.ctx, p.bed.source, s); err != nil {
		panic(failure{fmt.Errorf("the source: %s: %w", s, err)})
	}
	if err := p.world.Apply(s); err != nil {
		panic(failure{fmt.Errorf("the model: %w", err)})
	}
}

func (p *play) insert(ns string, id int32, s string) {
	if p.world.Has(ns, id) {
		return
	}
	d := row(id)
	d["s"], d["new"] = s, true
	p.do(Step{Do: Insert, NS: ns, ID: id, Doc: d})
}

func (p *play) update(ns string, id int32, set Doc) {
	if p.world.Has(ns, id) {
		p.do(Step{Do: Update, NS: ns, ID: id, Doc: set})
	}
}

func (p *play) replace(ns string, id int32, s string) {
	if p.world.Has(ns, id) {
		p.do(Step{Do: Replace, NS: ns, ID: id, Doc: Doc{"k": id, "n": 10 * id, "r": "replaced", "s": s, "v": 500 + id}})
	}
}

func (p *play) delete(ns string, id int32) {
	if p.world.Has(ns, id) {
		p.do(Step{Do: Delete, NS: ns, ID: id})
	}
}

// attempt runs a part of a play.
func (p *play) attempt(part func(*play)) (err error) {
	defer func() {
		switch x := recover().(type) {
		case nil:
		case failure:
			err = x.err
		default:
			panic(x)
		}
	}()
	part(p)
	return nil
}

// random draws so many commands, and runs them.
func (p *play) random(n int) {
	if p.writer == nil {
		p.writer = NewWriter(rand.New(rand.NewPCG(p.command.seed, 0x636d64)), p.world, p.base, p.base+"-x")
		p.writer.Streamed = kit.Streamed()
		if p.bed.lab != nil {
			p.writer.OnShards(p.bed.lab.ShardNames())
			if err := p.bed.createDatabases(p); err != nil {
				panic(failure{err})
			}
			if p.bed.targetLab != nil { // it makes a database anew on any shard
				p.writer.Kinds = slices.DeleteFunc(p.writer.Kinds, func(k Op) bool { return k == DropDatabase })
			}
		}
		if (cell{command{stops: true}, p.set, p.phase}).alone() { // what ends the job ends all plays
			p.writer.Kinds = slices.DeleteFunc(p.writer.Kinds, func(k Op) bool { return k == Convert || k == Clone })
		}
	}
	for tries := 0; n > 0 && tries < 1000; tries++ {
		s, ok := p.writer.Next()
		if !ok {
			continue
		}
		n--
		p.log = append(p.log, s.String())
		if err := p.bed.run(p.ctx, p.bed.source, s); err != nil {
			panic(failure{fmt.Errorf("the source: %s: %w", s, err)})
		}
	}
}

// setup is what the source has before the job, and what the target has of its own.
func (p *play) setup() {
	if p.command.seed != 0 {
		p.random(15)
		return
	}
	if err := p.bed.shard(p); err != nil {
		panic(failure{err})
	}
	fill(p)
	if p.command.setup != nil {
		p.command.setup(p)
	}
	if !p.set.rules.Merge {
		return
	}
	for _, own := range []struct {
		ns string
		id int32
	}{{p.ns("", "c"), 100}, {p.ns("", "c"), 101}, {p.ns("", "c"), 3}, {p.ns("", "d"), 102}, {p.ns("x", "d"), 103}} {
		if there, _ := p.world.Exists(own.ns); !there {
			continue
		}
		d := row(own.id)
		d["own"] = true
		if err := p.bed.run(p.ctx, p.bed.target, Step{Do: Insert, NS: own.ns, ID: own.id, Doc: d}); err != nil {
			panic(failure{err})
		}
		p.world.Own(own.ns, d)
	}
}

// change is all that happens while the job runs.
func (p *play) change() {
	if p.command.seed != 0 {
		p.random(40)
		return
	}
	before(p)
	for _, ns := range p.command.run(p) {
		if !p.alone() {
			after(p, ns)
		}
	}
}

// other is a shard that is not the primary one of the main database.
func (p *play) other() string {
	at, err := p.bed.lab.Primary(p.ctx, p.base)
	if err != nil {
		panic(failure{err})
	}
	names := p.bed.lab.ShardNames()
	return names[(slices.Index(names, at)+1)%len(names)]
}

// differences is how the target differs from the model.
func (p *play) differences(ctx context.Context) ([]string, error) {
	target, source := map[string]Actual{}, map[string]Actual{}
	for _, db := range p.databases() {
		if err := errors.Join(Read(ctx, p.bed.target.Database(db), target),
			Read(ctx, p.bed.source.Database(db), source)); err != nil {
			return nil, err
		}
	}
	return p.world.Compare(target, source), nil
}

// blamed is the play that an error of a job names, nil if it names none.
func blamed(plays []*play, output string) *play {
	for _, line := range slices.Backward(strings.Split(output, "\n")) {
		for _, p := range plays {
			if strings.Contains(line, p.base+".") || strings.Contains(line, p.base+"-x.") {
				return p
			}
		}
	}
	return nil
}
