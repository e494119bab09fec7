package ycsb

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

// shared is the server of the package's tests, which use databases of their own.
var shared struct {
	once    sync.Once
	lab     *lab.Cluster
	cluster *mongo.Cluster
	noise   []byte
	err     error
	dbs     atomic.Int64
}

// standInFor is set for this program when it plays the Java tool's script: its
// arguments.
const standInFor = "YCSB_STAND_IN"

// playJava does what the script of the Java tool would.
func playJava(args []string) error {
	p := Properties{}
	if len(args) != 4 || args[1] != "mongodb" || args[2] != "-P" {
		return fmt.Errorf("arguments %q", args)
	}
	if err := p.ReadFile(args[3]); err != nil {
		return err
	}
	r, err := Execute(context.Background(), Options{Phase: Phase(args[0]), Properties: p})
	if err != nil {
		return err
	}
	return WriteText(os.Stdout, r)
}

func TestMain(m *testing.M) {
	if args := os.Getenv(standInFor); args != "" {
		if err := playJava(strings.Fields(args)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if shared.cluster != nil {
		shared.cluster.Close()
	}
	if shared.lab != nil {
		_ = shared.lab.Stop()
	}
	os.Exit(code)
}

// bed is a database on the server.
type bed struct {
	testing.TB
	props Properties
	coll  *driver.Collection
}

func newBed(t testing.TB) *bed {
	t.Helper()
	lab.NeedServers(t)
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		shared.noise = NewNoise()
		if shared.lab, shared.err = lab.Start(ctx, lab.Options{Version: "6.0", LeanJournal: true,
			SetParameters: map[string]string{"enableTestCommands": "1"}}); shared.err == nil {
			shared.cluster, shared.err = mongo.Connect(ctx, shared.lab.URI(), mongo.Options{AppName: "test"})
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	db := fmt.Sprintf("y%d", shared.dbs.Add(1))
	url := strings.Replace(shared.lab.URI(), "/?", "/"+db+"?w=1&", 1)
	return &bed{t, Properties{"mongodb.url": url, "recordcount": "300", "operationcount": "800", "threadcount": "3",
		"requestdistribution": "zipfian"},
		shared.cluster.Client.Database(db).Collection("usertable")}
}

func (b *bed) do(phase Phase, pairs ...string) *Report {
	b.Helper()
	r, err := Execute(b.Context(), Options{Phase: phase, Properties: b.props.With(pairs...), Noise: shared.noise})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

func (b *bed) count() int64 {
	b.Helper()
	n, err := b.coll.CountDocuments(b.Context(), bson.D{})
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// returned checks how many operations of a name ended in a way.
func (b *bed) returned(r *Report, name, status string, want int64) {
	b.Helper()
	s := r.Find(name)
	if s == nil || s.Returns[status] != want {
		b.Errorf("%s: %+v, want %d %s; first error: %s", name, s, want, status, r.FirstError)
	}
}

func TestLoadWritesTheRecords(t *testing.T) {
	b := newBed(t)
	b.returned(b.do(Load), "INSERT", "OK", 300)
	if b.count() != 300 {
		t.Fatalf("%d documents", b.count())
	}
	raw, err := b.coll.FindOne(t.Context(), bson.D{{Key: "_id", Value: "user6284781860667377211"}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	elems, _ := raw.Elements()
	if len(elems) != 11 {
		t.Fatalf("fields: %s", raw)
	}
	for i, e := range elems[1:] {
		subtype, data, ok := e.Value().BinaryOK()
		if e.Key() != "field"+strconv.Itoa(i) || !ok || subtype != 0 || len(data) != 100 {
			t.Errorf("field %d: %s", i, e)
		}
	}
}

func TestRecordsAsTheyAreDescribed(t *testing.T) {
	b := newBed(t)
	b.do(Load, "fieldcount", "2", "fieldnameprefix", "f", "fieldlengthdistribution", "uniform", "minfieldlength", "5",
		"fieldlength", "9", "insertorder", "ordered", "zeropadding", "6", "table", "other")
	cur, err := b.coll.Database().Collection("other").Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct {
		ID string      `bson:"_id"`
		F0 bson.Binary `bson:"f0"`
		F1 bson.Binary `bson:"f1"`
	}
	if err := cur.All(t.Context(), &docs); err != nil || len(docs) != 300 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	lengths := map[int]bool{}
	for _, d := range docs {
		if !regexp.MustCompile(`^user000[0-2]\d\d$`).MatchString(d.ID) {
			t.Errorf("key %s", d.ID)
		}
		lengths[len(d.F0.Data)], lengths[len(d.F1.Data)] = true, true
	}
	if len(lengths) != 5 || !lengths[5] || !lengths[9] {
		t.Errorf("lengths %v", lengths)
	}
}

func TestBatchesAndUpserts(t *testing.T) {
	b := newBed(t)
	r := b.do(Load, "batchsize", "7", "threadcount", "2")
	s := r.Find("INSERT")
	if s == nil || s.Returns["OK"]+s.Returns["BATCHED_OK"] != 300 || s.Returns["BATCHED_OK"] < 250 || b.count() != 300 {
		t.Fatalf("%+v; %d documents", s, b.count())
	}
	// Again over what is there, partly: upserts do not mind.
	b.returned(b.do(Load, "recordcount", "350", "mongodb.upsert", "true"), "INSERT", "OK", 350)
	b.do(Load, "recordcount", "400", "mongodb.upsert", "true", "mongodb.batchsize", "50")
	if b.count() != 400 {
		t.Errorf("%d documents, want 400", b.count())
	}
	b.do(Load, "recordcount", "500", "insertstart", "400")
	if b.count() != 500 {
		t.Errorf("%d documents, want 500", b.count())
	}
}

func TestLoadStopsAndSaysHowToGoOn(t *testing.T) {
	b := newBed(t)
	b.do(Load, "insertstart", "120", "insertcount", "1")
	for _, batch := range []string{"1", "16"} {
		r, err := Execute(t.Context(),
			Options{Phase: Load, Properties: b.props.With("batchsize", batch, "insertstart", "100"),
				Noise: shared.noise})
		if err == nil || !strings.Contains(mongo.HintOf(err), "insertstart=") || r.Resume == nil {
			t.Fatalf("batch %s: %v, hint %q", batch, err, mongo.HintOf(err))
		}
		if r.Resume.InsertStart > 120 || r.Resume.InsertStart+r.Resume.InsertCount != 300 {
			t.Errorf("batch %s: %+v", batch, r.Resume)
		}
		r = b.do(Load, "insertstart", strconv.FormatInt(r.Resume.InsertStart, 10), "insertcount",
			strconv.FormatInt(r.Resume.InsertCount, 10), "mongodb.upsert", "true")
		if r.Resume != nil || b.count() != 200 {
			t.Errorf("batch %s: after the rest, %d documents, %+v", batch, b.count(), r.Resume)
		}
		if _, err := b.coll.DeleteMany(t.Context(),
			bson.D{{Key: "_id", Value: bson.D{{Key: "$ne", Value: string(keys{}.append(nil, 120))}}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoadTriesAgain(t *testing.T) {
	b := newBed(t)
	fail := bson.D{{Key: "configureFailPoint", Value: "failCommand"},
		{Key: "mode", Value: bson.D{{Key: "times", Value: 3}}},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"insert"}}, {Key: "closeConnection", Value: true},
			{Key: "appName", Value: "millrace ycsb"}}}}
	if _, err := shared.cluster.Command(t.Context(), "admin", fail); err != nil {
		t.Fatal(err)
	}
	b.returned(b.do(Load, "core_workload_insertion_retry_limit", "5", "core_workload_insertion_retry_interval", "0.05"),
		"INSERT", "OK", 300)
	if b.count() != 300 {
		t.Errorf("%d documents", b.count())
	}
}

// A connection that breaks costs the operation under way, and no other.
func TestRunGoesOnAfterErrors(t *testing.T) {
	b := newBed(t)
	b.do(Load)
	for _, data := range []bson.D{{{Key: "closeConnection", Value: true}}, {{Key: "errorCode", Value: 112}}} {
		data = append(data, bson.E{Key: "failCommands", Value: bson.A{"update"}},
			bson.E{Key: "appName", Value: "millrace ycsb"})
		fail := bson.D{{Key: "configureFailPoint", Value: "failCommand"},
			{Key: "mode", Value: bson.D{{Key: "times", Value: 4}}}, {Key: "data", Value: data}}
		if _, err := shared.cluster.Command(t.Context(), "admin", fail); err != nil {
			t.Fatal(err)
		}
		r := b.do(Run, "readproportion", "0", "updateproportion", "1")
		if r.Failed < 4 || r.Find("UPDATE").Returns["OK"]+r.Failed != 800 || r.Failed > 20 || r.FirstError == "" {
			t.Errorf("%v: %+v", data, r.Series)
		}
	}
}

func TestCoreWorkloads(t *testing.T) {
	b := newBed(t)
	b.do(Load)
	for _, w := range []string{"a", "b", "c", "f", "e", "d"} {
		p := Properties{}
		if err := p.ReadFile("workload" + w); err != nil {
			t.Fatal(err)
		}
		for k, v := range b.props {
			p[k] = v
		}
		p["requestdistribution"] = map[bool]string{true: "latest", false: "zipfian"}[w == "d"]
		if w == "d" {
			p["recordcount"] = strconv.FormatInt(b.count(), 10) // workload e has inserted some
		}
		before := b.count()
		r, err := Execute(t.Context(), Options{Phase: Run, Properties: p, Noise: shared.noise})
		if err != nil {
			t.Fatal(err)
		}
		if r.Operations != 800 || r.Failed != 0 {
			t.Errorf("workload %s: %d operations, %d failed: %s", w, r.Operations, r.Failed, r.FirstError)
		}
		var inserted int64
		if s := r.Find("INSERT"); s != nil {
			inserted = s.Returns["OK"]
		}
		if b.count() != before+inserted || (w == "d" || w == "e") != (inserted > 0) {
			t.Errorf("workload %s: %d documents more, %d inserted", w, b.count()-before, inserted)
		}
		if w == "f" && (r.Find("READ").Operations != 800 || r.Find("READ-MODIFY-WRITE").Operations != r.Find("UPDATE").
			Operations) {
			t.Errorf("workload f: %+v", r.Series)
		}
	}
}

func TestUpdatesAndReadsOfFields(t *testing.T) {
	b := newBed(t)
	b.do(Load)
	for _, writeAll := range []bool{false, true} {
		var before bson.Raw
		one := bson.D{{Key: "_id", Value: string(keys{}.append(nil, 0))}}
		before, _ = b.coll.FindOne(t.Context(), one).Raw()
		b.do(Run, "recordcount", "1", "operationcount", "1", "threadcount", "1", "readproportion", "0", "updateproportion",
			"1", "writeallfields", strconv.FormatBool(writeAll))
		after, err := b.coll.FindOne(t.Context(), one).Raw()
		if err != nil {
			t.Fatal(err)
		}
		changed := 0
		for i := range 10 {
			if !bytes.Equal(before.Lookup("field"+strconv.Itoa(i)).Value, after.Lookup("field"+strconv.Itoa(i)).Value) {
				changed++
			}
		}
		if want := map[bool]int{false: 1, true: 10}[writeAll]; changed != want || len(before) != len(after) {
			t.Errorf("writeallfields=%v: %d fields changed, want %d", writeAll, changed, want)
		}
	}
	// A read of one field brings one back.
	c, err := parse(b.props.With("readallfields", "false"), Run)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorkload(c, shared.noise)
	s, err := newStore(shared.cluster.Pool, c, w.content, random(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	doc, st, err := s.read(t.Context(), time.Now(), w.keys.append(nil, 5), 3)
	if elems, _ := doc.Elements(); st != statusOK || err != nil || len(elems) != 2 || elems[1].Key() != "field3" {
		t.Errorf("%s, %v, %v", doc, st, err)
	}
	if _, st, err := s.read(t.Context(), time.Now(), []byte("nobody"), -1); st != statusNotFound || err != nil {
		t.Errorf("a record that is not there: %v, %v", st, err)
	}
	if st, err := s.update(t.Context(), time.Now(), []byte("nobody"), 0); st != statusNotFound || err != nil {
		t.Errorf("update of a record that is not there: %v, %v", st, err)
	}
	if st, err := s.scan(t.Context(), time.Now(), []byte("v"), 5, -1); st != statusNotFound || err != nil {
		t.Errorf("scan behind the last: %v, %v", st, err)
	}
}

func TestScanOfMoreThanAReply(t *testing.T) {
	b := newBed(t)
	b.props = b.props.With("recordcount", "12", "fieldcount", "1", "fieldlength", "2500000", "insertorder", "ordered",
		"zeropadding", "3")
	b.do(Load)
	r := b.do(Run, "readproportion", "0", "updateproportion", "0", "scanproportion", "1", "operationcount", "3",
		"minscanlength", "12", "maxscanlength", "12", "requestdistribution", "sequential")
	b.returned(r, "SCAN", "OK", 3)
}

func TestDataIntegrity(t *testing.T) {
	b := newBed(t)
	b.props = b.props.With("dataintegrity", "true")
	b.do(Load)
	r := b.do(Run, "readproportion", "0.5", "updateproportion", "0.5")
	b.returned(r, "VERIFY", "OK", r.Find("READ").Operations)
	id := bson.D{{Key: "_id", Value: string(keys{}.append(nil, 0))}}
	if _, err := b.coll.UpdateOne(t.Context(), id,
		bson.D{{Key: "$set", Value: bson.D{{Key: "field4", Value: bson.Binary{Data: make([]byte, 100)}}}}}); err != nil {
		t.Fatal(err)
	}
	b.returned(b.do(Run, "recordcount", "1", "operationcount", "9", "readproportion", "1", "updateproportion", "0"),
		"VERIFY", "UNEXPECTED_STATE", 9)
}

func TestMissingRecordsAndErrors(t *testing.T) {
	b := newBed(t)
	r := b.do(Run, "operationcount", "50")
	if r.Failed != 50 || r.Find("READ-FAILED") == nil || r.Find("READ").Returns["NOT_FOUND"] == 0 {
		t.Errorf("%+v", r.Series)
	}
	b.do(Load)
	r = b.do(Run, "mongodb.url", strings.Replace(b.props["mongodb.url"], "w=1", "w=nowhere", 1), "readproportion", "0",
		"updateproportion", "1", "operationcount", "5")
	b.returned(r, "UPDATE", "ERROR", 5)
	if !strings.Contains(r.FirstError, "nowhere") {
		t.Errorf("first error: %s", r.FirstError)
	}
}
