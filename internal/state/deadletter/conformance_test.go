package deadletter_test

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/statetest"
	"github.com/millrace/millrace/workshop/lab"
)

// TestLetters: letters kept in the target.
func TestLetters(t *testing.T) {
	c := dial.Cluster(t, lab.ForTest(t, lab.Options{}).URI(), mongo.Options{})
	statetest.RunLetters(t, func(job string) *deadletter.Store { return deadletter.New(c, job, nil) })
	t.Run("terms are observed", func(t *testing.T) { testTerms(t, c) })
	t.Run("in a transaction", func(t *testing.T) { testTransaction(t, c) })
}

func about(t *testing.T, id any) deadletter.Letter {
	t.Helper()
	doc := kit.Raw(bson.D{{Key: "_id", Value: id}, {Key: "$v", Value: 1}})
	return deadletter.Letter{Origin: stream.Origin{NS: "d.c"}, State: deadletter.Open, Cause: deadletter.CauseKey,
		DocID: bsoncore.Document(doc).Lookup("_id"), Doc: doc,
		At: mongo.OpTime{TS: bson.Timestamp{T: 5, I: 1}, Term: 1}}
}

// testTerms: a write that was answered in another term is no letter.
func testTerms(t *testing.T, c *mongo.Cluster) {
	changed := errors.New("another term")
	var terms []int64
	refuse := false
	s := deadletter.New(c, "terms", func(term int64) error {
		if terms = append(terms, term); refuse {
			return changed
		}
		return nil
	})
	if err := s.Write(t.Context(), about(t, 1)); err != nil || len(terms) != 3 || terms[0] < 1 {
		t.Errorf("%v, terms %v", err, terms)
	}
	refuse = true
	if err := s.Write(t.Context(), about(t, 2)); !errors.Is(err, changed) || s.Disputed("d.c", about(t, 2).DocID) {
		t.Errorf("a letter of another term: %v", err)
	}
	if err := s.Settle(t.Context(), about(t, 1), "x"); !errors.Is(err, changed) || !s.Disputed("d.c", about(t, 1).DocID) {
		t.Errorf("settled in another term: %v", err)
	}
}

// testTransaction: what Commands gives is a letter once somebody has run it.
func testTransaction(t *testing.T, c *mongo.Cluster) {
	s := deadletter.New(c, "txn", nil)
	l := about(t, 1)
	cmds := s.Commands(&l)
	for range 2 { // a transaction may be run again
		for _, cmd := range cmds {
			if err := c.Client.Database(mongo.StateDB).RunCommand(t.Context(), cmd).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s.Disputed(l.NS, l.DocID) {
		t.Error("in dispute before it is noted")
	}
	s.Noted(l)
	again := deadletter.New(c, "txn", nil)
	if err := again.Load(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*deadletter.Store{"noted": s, "loaded": again} {
		got, ok, err := s.Read(t.Context(), l.NS, l.DocID)
		if err != nil || !ok || got.ID != l.ID || string(got.Doc) != string(l.Doc) || s.Stats().Open != 1 {
			t.Errorf("%s: %+v, %v, %v", name, got, ok, err)
		}
	}
	if err := c.Client.Database(mongo.StateDB).RunCommand(t.Context(),
		deadletter.SettleCommand(l, "written")).Err(); err != nil {
		t.Fatal(err)
	}
	s.Forgotten(l, true)
	if got := s.Stats(); got != (deadletter.Stats{Settled: 1}) || s.Disputed(l.NS, l.DocID) {
		t.Errorf("after it was settled: %+v", got)
	}
}
