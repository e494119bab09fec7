package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/workshop/plot"
)

// growth are the cases of the seed scenario that have been measured, to show side by side how both ways grow.
type growth []*Case

// table compares the ways, medians over the rounds; ratios are those of rounds.
func (g growth) table() (header []string, rows [][]string) {
	header = []string{"collections", "indexes each", seedLogical, seedTwoPass, "times as fast",
		"of which the new mongod's start", "locked, one pass", "two passes", "of it", "source stalled, one pass",
		"two passes"}
	for _, c := range g {
		seed, logical, one := c.contender(seedTwoPass), c.contender(seedLogical), c.contender(seedOnePass)
		faster, _ := c.against(seedLogical, seedTwoPass)
		_, lock := c.against(seedTwoPass, seedOnePass)
		rows = append(rows, []string{
			itoa(c.Collections), itoa(c.Indexes), figure(logical.Seconds.Median) + " s", figure(seed.Seconds.Median) + " s",
			figure(faster.Median),
			figure(seed.part(partListen)+seed.part(partAnswer)) + " s", figure(one.Values[valueLocked].Median) + " s",
			figure(seed.Values[valueLocked].Median) + " s",
			strconv.FormatFloat(lock.Median*100, 'f', 1, 64) + " %",
			figure(one.Values[valueStall].Median) + " s", figure(seed.Values[valueStall].Median) + " s",
		})
	}
	return header, rows
}

// part is the median of a duration within the rounds.
func (x *Contender) part(name string) float64 {
	return median(x.Each(func(r Round) float64 { return r.Parts[name] }))
}

// charts draw seconds over the number of indexes and of collections.
func (g growth) charts(s *plot.Sheet) {
	for _, axis := range []struct {
		title string
		name  func(*Case) string
		on    func(*Case) bool
	}{
		{"seconds until the new member has caught up, over indexes of one collection",
			func(c *Case) string { return itoa(c.Indexes) }, func(c *Case) bool { return c.Collections == 1 }},
		{"the same, over collections of five indexes each",
			func(c *Case) string { return itoa(c.Collections) }, func(c *Case) bool { return c.Indexes == 5 }},
	} {
		var names []string
		// their order in the cases' charts
		lines := []plot.Line{{Name: seedOnePass}, {Name: seedTwoPass}, {Name: seedLogical}}
		for _, c := range g {
			if !axis.on(c) {
				continue
			}
			for i := range lines {
				l := &lines[i]
				l.X, l.Y = append(l.X, float64(len(names))), append(l.Y, c.contender(l.Name).Seconds.Median)
			}
			names = append(names, axis.name(c))
		}
		if len(names) > 1 {
			s.Lines(axis.title, lines, names...)
		}
	}
}

// partsTable names what the seconds of each seed consist of, medians over the rounds.
func (g growth) partsTable() (header []string, rows [][]string) {
	// A way that locks nothing has no lock to be named.
	var names []string
	for _, p := range seedParts() {
		if slices.ContainsFunc(g, func(c *Case) bool { return c.contender(seedTwoPass).part(p.name) > 0 }) {
			names = append(names, p.name)
		}
	}
	header = append([]string{"seed", "seconds"}, names...)
	for _, c := range g {
		x := c.contender(seedTwoPass)
		row := []string{c.Name(), figure(x.Seconds.Median)}
		for _, name := range names {
			row = append(row, figure(x.part(name)))
		}
		rows = append(rows, row)
	}
	return header, rows
}

// fixedNotes name the parts of the shortest seed that do not grow with the data.
func (g growth) fixedNotes() []string {
	shortest := slices.MinFunc(g, func(a, b *Case) int {
		return cmp.Compare(a.contender(seedTwoPass).Seconds.Median, b.contender(seedTwoPass).Seconds.Median)
	})
	x := shortest.contender(seedTwoPass)
	var sum float64
	var texts []string
	for _, p := range seedParts() {
		if took := x.part(p.name); took > 0 && p.fixed {
			sum += took
			texts = append(texts, p.name+" "+figure(took)+" s")
		}
	}
	return []string{fmt.Sprintf("of the %s s of the shortest, %s, %s s are parts that do not depend on the data: %s",
		figure(x.Seconds.Median), shortest.Name(), figure(sum), strings.Join(texts, "; "))}
}

// The values that updates set, of a document that is a third random.
const thirdFields = ycsbFields

// thirdRandom makes documents of a size that take about a third of it on disk, as the published ones did. They have
// ten random integers, and a body of random bytes and a run. The published documents are not known.
func thirdRandom(size int) *shape {
	return &shape{
		name: "ten 32-bit integers, a body; a third of it random", noise: newNoise(), fields: thirdFields, size: size,
		id: func(_ *shape, dst []byte, key uint32) []byte {
			return bsoncore.AppendInt64Element(dst, "_id", int64(mix(uint64(key))))
		},
		body: func(s *shape, dst []byte, key uint32, version []uint32) []byte {
			for f := range thirdFields {
				dst = thirdField(s, dst, key, f, at(version, f))
			}
			return appendBody(s, dst, key)
		},
		field: thirdField,
	}
}

func thirdField(_ *shape, dst []byte, key uint32, field int, version uint32) []byte {
	return bsoncore.AppendInt32Element(dst, "field"+itoa(field),
		int32(mix(mix(uint64(key)<<32|uint64(version))+uint64(field))))
}

func appendBody(s *shape, dst []byte, key uint32) []byte {
	const (
		around    = 4 + 13 + thirdFields*12 + 11 + 1 // length, _id, fields, the body's own header, end
		numbers   = 8 + thirdFields*4                // random bytes outside the body
		unpressed = 70                               // names and headers, as snappy leaves them, and the page's own bytes
		runs      = 21                               // how many times smaller snappy makes a run
	)
	n := max(s.size-around, 0)
	// Somewhat less than a third: a table's file has room that is free.
	random := min(max(s.size*3/10-numbers-unpressed-n/runs, 0), n)
	dst = bsoncore.AppendHeader(dst, bsoncore.TypeBinary, "body")
	dst = append(dst, byte(n), byte(n>>8), byte(n>>16), byte(n>>24), 0)
	dst = append(dst, s.bytes(key, thirdFields, 0, random)...)
	for range n - random {
		dst = append(dst, 'x')
	}
	return dst
}

// stored is the size of the documents and what they take on disk, in bytes, on the member whose files are copied.
func (w *seedWork) stored(ctx context.Context) (data, disk int64, err error) {
	for c := range w.data.collections {
		raw, err := w.source.nodes[w.from].Command(ctx, dataDB, bson.D{{Key: "collStats", Value: collection(c)}})
		if err != nil {
			return 0, 0, fmt.Errorf("ask for the size of %s: %w", collection(c), err)
		}
		size, ok := raw.Lookup("size").AsInt64OK()
		storage, ok2 := raw.Lookup("storageSize").AsInt64OK()
		if !ok || !ok2 {
			return 0, 0, fmt.Errorf("the server returned no size of %s", collection(c))
		}
		data, disk = data+size, disk+storage
	}
	return data, disk, nil
}

type overview struct {
	Title  string
	Header []string
	Rows   [][]string
	Notes  []string
	plot.Sheet
}

// overviews are those of a report, none where it has no such cases.
func (r *Report) overviews() (all []overview) {
	if g := r.seeded(); len(g) > 0 {
		o := overview{Title: "How both ways to a new member grow"}
		o.Header, o.Rows = g.table()
		g.charts(&o.Sheet)
		parts := overview{Title: "What the seconds of a seed consist of", Notes: g.fixedNotes()}
		parts.Header, parts.Rows = g.partsTable()
		all = append(all, o, parts)
	}
	return all
}

// seeded are the cases of new members.
func (r *Report) seeded() (all growth) {
	for i := range r.Cases {
		c := &r.Cases[i]
		if len(c.contender(seedTwoPass).Rounds) > 0 && len(c.contender(seedLogical).Rounds) > 0 {
			all = append(all, c)
		}
	}
	return all
}
