package memory

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// item is something that is large by itself. load makes what the copy finds, change what
// comes after it; nil is nothing. They return what there is of it.
type item struct {
	name         string
	load, change func(b *bed, c *mongo.Collection) string
}

// few is for make test, where a part of the work is done.
func few(n, brief int) int {
	if lab.Brief() {
		return brief
	}
	return n
}

func items() []item {
	return []item{
		{"documents of 16 MB", loadLarge, changeLarge},
		{"open transactions", nil, changeTransactions},
		{"one array", loadArray, changeArray},
		{"_ids of 1 KB", loadIDs, changeIDs},
	}
}

const itemsHeader = "| item | size | step | peak | limit | processor | time |"

// TestLargeItems: what is large by itself passes within the memory that a process may have.
func TestLargeItems(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	// Only shards prepare transactions, unless test commands are taken.
	b := newBed(t, lab.Options{OplogMB: few(8000, 990), CacheGB: float64(few(4, 1)), TestCommands: true})
	for i, one := range items() {
		t.Run(one.name, func(t *testing.T) {
			part := *b
			part.T = t
			part.item(fmt.Sprint("items", i), one)
		})
	}
	b.table(itemsHeader)
}

func (b *bed) item(db string, one item) {
	b.Helper()
	c := b.sc.Database(db).Collection("c")
	defer func() { _, _ = c.Database().Drop(b.Context()), b.tc.Database(db).Drop(b.Context()) }()
	b.ok(c.Database().CreateCollection(b.Context(), "c"))
	args := []string{"sync", "--job", db, "--include", db + ".*", "--until"}
	if one.load != nil {
		size := one.load(b, c)
		b.measured(one.name, size, "copy", b.millrace(b.following(db), append(args, "never")...))
	} else {
		b.millrace(b.following(db), append(args, "never")...)
	}
	if one.change != nil {
		size := one.change(b, c)
		b.measured(one.name, size, "changes", b.millrace(nil, append(args, "caught-up")...))
	}
	b.measured(one.name, "the same", "verify", b.millrace(nil, "verify", "--include", db+".*"))
	b.same(db + ".")
}

// following waits until a job follows.
func (b *bed) following(job string) func(*test.Process) {
	return func(p *test.Process) { p.AwaitPhase(b.tc, job, "following") }
}

func (b *bed) measured(name, size, step string, u used) {
	b.Helper()
	b.row("| %s | %s | %s | %d MB | %d MB | %.1f s | %.1f s |", name, size, step, u.peak>>20, limit>>20, u.cpu.Seconds(),
		u.took.Seconds())
	b.Logf("%s, %s: peak memory %s, %s of CPU, %s", step, size, test.Megabytes(u.peak), u.cpu, u.took)
	if u.peak > limit {
		b.Errorf("%s of %s: peak memory %s, want at most %s", step, size, test.Megabytes(u.peak), test.Megabytes(limit))
	}
}

const whole = 16<<20 - 100 // with its fields, nearly the largest document that a server takes

func loadLarge(b *bed, c *mongo.Collection) string {
	b.Helper()
	n := few(60, 6)
	for i := range n {
		_, err := c.InsertOne(b.Context(), bson.D{{Key: "_id", Value: i}, {Key: "x", Value: padding(i, whole)}})
		b.ok(err)
	}
	return fmt.Sprintf("%d documents", n)
}

// padding differs from one number to the next.
func padding(i, n int) bson.Binary {
	b := make([]byte, n)
	for at := 0; at+8 <= n; at += 4096 {
		binary.LittleEndian.PutUint64(b[at:], uint64(i)*0x9E3779B97F4A7C15+uint64(at))
	}
	return bson.Binary{Data: b}
}

// changeLarge replaces, updates by as much, updates a little, deletes and inserts again.
func changeLarge(b *bed, c *mongo.Collection) string {
	b.Helper()
	ctx, n := b.Context(), few(60, 6)
	for i := range n {
		id := bson.D{{Key: "_id", Value: i}}
		var err error
		switch i % 4 {
		case 0:
			_, err = c.ReplaceOne(ctx, id, bson.D{{Key: "x", Value: padding(n+i, whole)}})
		case 1:
			_, err = c.UpdateOne(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: padding(n+i, whole)}}}})
		case 2:
			_, err = c.UpdateOne(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: i}}}})
		default:
			if _, err = c.DeleteOne(ctx, id); err == nil {
				_, err = c.InsertOne(ctx, bson.D{id[0], {Key: "x", Value: padding(2*n+i, whole)}})
			}
		}
		b.ok(err)
	}
	return fmt.Sprintf("%d changes", n)
}

// changeTransactions prepares transactions, so that all are open in the oplog at once, and
// commits them.
func changeTransactions(b *bed, c *mongo.Collection) string {
	b.Helper()
	const sessions, mb = 16, 1 << 20
	each := few(128, 4)
	var commits []func()
	for s := range sessions {
		session, err := b.sc.StartSession()
		b.ok(err)
		b.Cleanup(func() { session.EndSession(context.Background()) })
		b.ok(session.StartTransaction())
		ctx := mongo.NewSessionContext(b.Context(), session)
		for i := range each {
			_, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: 1000*s + i}, {Key: "x", Value: padding(i, mb)}})
			b.ok(err)
		}
		var prepared struct {
			TS bson.Timestamp `bson:"prepareTimestamp"`
		}
		admin := b.sc.Database("admin")
		b.ok(admin.RunCommand(ctx, kit.D("prepareTransaction", 1, "writeConcern", kit.D("w", "majority"))).Decode(&prepared))
		commits = append(commits, func() {
			b.ok(admin.RunCommand(ctx, kit.D("commitTransaction", 1, "commitTimestamp", prepared.TS)).Err())
		})
	}
	for _, commit := range commits {
		commit()
	}
	return fmt.Sprintf("%d of %d MB", sessions, each)
}

func arraySize() int { return few(100_000, 4000) }

func loadArray(b *bed, c *mongo.Collection) string {
	b.Helper()
	n := arraySize()
	_, err := c.InsertOne(b.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: make([]int32, n)}})
	b.ok(err)
	return fmt.Sprintf("%d elements", n)
}

// changeArray updates as many elements as there are, scattered.
func changeArray(b *bed, c *mongo.Collection) string {
	b.Helper()
	const batch = 1000
	n := arraySize()
	for from := 0; from < n; from += batch {
		var updates bson.A
		for i := from; i < from+batch; i++ {
			at := i * 7919 % n
			updates = append(updates, kit.D("q", kit.D("_id", 1), "u", kit.D("$set", kit.D(fmt.Sprint("a.", at), i+1))))
		}
		b.ok(c.Database().RunCommand(b.Context(), kit.D("update", c.Name(), "updates", updates)).Err())
	}
	return fmt.Sprintf("%d updates", n)
}

func loadIDs(b *bed, c *mongo.Collection) string {
	b.Helper()
	n := few(300_000, 5000)
	insertIDs(b, c, 0, n)
	return fmt.Sprintf("%d documents", n)
}

func insertIDs(b *bed, c *mongo.Collection, from, to int) {
	b.Helper()
	const batch = 1000
	for ; from < to; from += batch {
		var docs []any
		for i := from; i < min(from+batch, to); i++ {
			id := key(i) + strings.Repeat("x", 1000)
			docs = append(docs, bson.D{{Key: "_id", Value: id[:1000]}, {Key: "n", Value: i}})
		}
		_, err := c.InsertMany(b.Context(), docs)
		b.ok(err)
	}
}

// changeIDs updates all documents, deletes a third and inserts as many.
func changeIDs(b *bed, c *mongo.Collection) string {
	b.Helper()
	ctx, n := b.Context(), few(300_000, 5000)
	_, err := c.UpdateMany(ctx, bson.D{}, kit.D("$inc", kit.D("n", 1)))
	b.ok(err)
	_, err = c.DeleteMany(ctx, kit.D("n", kit.D("$mod", bson.A{3, 0})))
	b.ok(err)
	insertIDs(b, c, n, n+n/3)
	return fmt.Sprintf("%d changes", n+n/3*2)
}

// TestSlicesOfALargeCollection: a collection that says of itself that it has 100 million
// documents of 10 KB is cut and copied in thousands of slices.
func TestSlicesOfALargeCollection(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	docs := few(400_000, 20_000)
	src := lab.ForTest(t, lab.Options{OplogMB: 990, CacheGB: 1, Proxy: true})
	dst := lab.ForTest(t, lab.Options{OplogMB: 990, CacheGB: 1})
	src.Members()[0].Proxy().Tap(func() (sent, received func([]byte)) {
		return func([]byte) {}, exaggerate(int64(few(100_000_000, 5_000_000)), 10<<10)
	})
	b := bedBetween(t, src.URI(), dst.URI())
	seed := uint64(1)
	operations{"insert", seed, docs, appendSmall}.write(t, openPool(t, b.source))
	size := fmt.Sprintf("%d documents that say they are %d", docs, few(100_000_000, 5_000_000))
	b.measured("slices", size, "copy", b.millrace(b.following("slices"), "sync", "--job", "slices", "--include", "ycsb.*",
		"--until", "never", "--compress", "off"))
	slices, err := b.tc.Database("millrace").Collection("slices").CountDocuments(t.Context(), bson.D{})
	b.ok(err)
	t.Logf("%d slices", slices)
	if want := int64(few(3000, 100)); slices < want {
		t.Errorf("%d slices, want %d", slices, want)
	}
	b.measured("slices", size, "start again and finalize", b.millrace(nil, "sync", "--job", "slices", "--include",
		"ycsb.*", "--until", "caught-up"))
	b.measured("slices", size, "verify", b.millrace(nil, "verify", "--include", "ycsb.*"))
	b.same("ycsb.")
	b.table(itemsHeader)
}

// exaggerate changes the numbers of dataSize as they pass: three numbers of four bytes
// become two of eight and a null.
func exaggerate(docs, bytesEach int64) func([]byte) {
	was := regexp.MustCompile(`(?s)\x10size\x00....\x10numObjects\x00....\x10millis\x00....`)
	now := append([]byte("\x12size\x00"), binary.LittleEndian.AppendUint64(nil, uint64(docs*bytesEach))...)
	now = append(now, "\x12numObjects\x00"...)
	now = append(binary.LittleEndian.AppendUint64(now, uint64(docs)), "\x0Ams\x00"...)
	return func(reply []byte) {
		if len(reply) > 1<<10 { // no answer of dataSize
			return
		}
		if at := was.FindIndex(reply); at != nil {
			copy(reply[at[0]:at[1]], now)
		}
	}
}

func appendSmall(dst []byte, n int, _ *rand.Rand) []byte {
	return append(dst, kit.Raw(bson.D{{Key: "_id", Value: key(n)}, {Key: "n", Value: n}})...)
}
