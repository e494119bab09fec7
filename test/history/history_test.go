package history

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func newest(int, int) bool { return true }

func TestGenerateRepeats(t *testing.T) {
	for seed := range uint64(20) {
		o := Options{Seed: seed, Writers: 3, Parts: []int{30, 50, 50, 50}, Since: newest}
		if !reflect.DeepEqual(Generate(o), Generate(o)) {
			t.Errorf("seed %d makes two histories", seed)
		}
	}
}

// Files keep histories byte by byte, also what extended JSON cannot say.
func TestFilesKeepHistories(t *testing.T) {
	for seed := range uint64(30) {
		h := Generate(Options{Seed: seed, Writers: 3, Parts: []int{30, 100}, Since: newest})
		for name, v := range Values() {
			h.Steps = append(h.Steps, inserting("c", D("_id", name, "v", v, "v", A(v, D("", v)))))
		}
		h.Steps = append(h.Steps, Step{Do: Restart, Part: 1}, Step{Do: Commit, Txn: 3, Writer: 2})
		name := t.TempDir() + "/history"
		if err := h.WriteFile(name); err != nil {
			t.Fatal(err)
		}
		got, err := ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Steps) != len(h.Steps) || got.Seed != h.Seed || got.Free != h.Free || !reflect.DeepEqual(got.Job, h.Job) {
			t.Fatalf("read %d steps of %d, %+v", len(got.Steps), len(h.Steps), got.Job)
		}
		for i, s := range h.Steps {
			g := got.Steps[i]
			if !bytes.Equal(s.Cmd, g.Cmd) || g.Part != s.Part || g.Writer != s.Writer || g.Txn != s.Txn || g.Do != s.Do ||
				g.DB != s.DB {
				t.Fatalf("step %d: %s became %s", i, s, g)
			}
		}
	}
}

func TestReadTellsTheLine(t *testing.T) {
	_, err := Read(strings.NewReader("{}\n{\"part\":1}\n{\"cmd\":{\"a\":{\"$numberInt\":\"x\"}}}\n"))
	if err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Error(err)
	}
}

// Many seeds together make every kind of step.
func TestGenerateMakesEverything(t *testing.T) {
	want := []string{`"insert":`, `"update":`, `"delete":`, `"findAndModify":`, `arrayFilters`, `.$[x]`, `$push`, `$pop`,
		`$pullAll`, `$rename`, `$currentDate`,
		`"upsert":true`, `"multi":true`, `"ordered":false`, `$replaceWith`, `$setField`, `"do":"commit"`, `"do":"abort"`,
		`"do":"restart"`, `"do":"fill"`, `"db":"x"`,
		`"create":`, `"drop":`, `"renameCollection":`, `"DB-x.`, `"collMod":`, `"createIndexes":`, `"dropIndexes":`, `$out`,
		`$merge`, `"viewOn":`, `expireAfterSeconds`,
		`"insert":"capped"`, `"insert":"series"`, `"insert":"folded"`, `"dropDatabase":`, `clusteredIndex`, `convertToCapped`,
		`$symbol`, `$dbPointer`, `$undefined`, `$minKey`}
	var text strings.Builder
	for seed := range uint64(60) {
		for _, s := range Generate(Options{Seed: seed, Writers: 3, Parts: []int{10, 50, 100}, Since: newest}).Steps {
			text.WriteString(s.String())
		}
	}
	for _, w := range want {
		if !strings.Contains(text.String(), w) {
			t.Errorf("no %s", w)
		}
	}
}

func TestNamesOfDatabases(t *testing.T) {
	s := run(D("renameCollection", "DB.a", "to", "DB-x.b", "dropTarget", true))
	cmd, db, err := s.resolve("base")
	if want := D("renameCollection", "base.a", "to", "base-x.b", "dropTarget", true); err != nil || db != "admin" ||
		!reflect.DeepEqual(cmd, want) {
		t.Error(cmd, db, err)
	}
	s = run(D("aggregate", "c", "pipeline", A(D("$merge", D("into", D("db", "DB-x", "coll", "DB"))))))
	s.DB = "x"
	cmd, db, err = s.resolve("base")
	if want := D("aggregate", "c", "pipeline", A(D("$merge", D("into", D("db", "base-x", "coll", "DB"))))); err != nil ||
		db != "base-x" || !reflect.DeepEqual(cmd, want) {
		t.Error(cmd, db, err)
	}
	s = inserting("c", D("to", "DB.a"))
	if cmd, db, err := s.resolve("base"); err != nil || db != "base" || !bytes.Equal(cmd.(bson.Raw), s.Cmd) {
		t.Error(cmd, db, err)
	}
}
