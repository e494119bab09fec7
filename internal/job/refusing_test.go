package job_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// admin runs a command on the target.
func (s servers) admin(t *testing.T, cmd bson.D) {
	t.Helper()
	if err := s.targetC.Database("admin").RunCommand(context.WithoutCancel(t.Context()), cmd).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestTargetRefuses: a job waits for writes that the operator of the target blocks, and
// says which featureCompatibilityVersion to raise where the target refuses what it took.
func TestTargetRefuses(t *testing.T) {
	s := start(t)
	following := func(t *testing.T, db string) (*job.Job, <-chan error) {
		t.Helper()
		insert(t, s.srcDB, db, 10)
		spec := s.spec(db)
		spec.Until = ""
		j := open(t, spec)
		ended := make(chan error, 1)
		go func() { ended <- j.Run(t.Context()) }()
		kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing })
		return j, ended
	}
	t.Run("writes blocked", func(t *testing.T) {
		block := func(on bool) {
			s.admin(t, bson.D{{Key: "setUserWriteBlockMode", Value: 1}, {Key: "global", Value: on}})
		}
		j, ended := following(t, "blocked")
		block(true)
		t.Cleanup(func() { block(false) })
		if _, err := s.srcDB.Database("blocked").Collection("c").InsertOne(t.Context(),
			bson.D{{Key: "_id", Value: "later"}}); err != nil {
			t.Fatal(err)
		}
		kit.Until(t, "the status names the cause", func() bool {
			select {
			case err := <-ended:
				t.Fatalf("the job ended: %v", err)
			default:
			}
			w := j.Status().Waiting
			return strings.Contains(w, "User writes blocked") && strings.Contains(w, "setUserWriteBlockMode")
		})
		block(false)
		kit.Until(t, "the document arrives", func() bool { return count(t, s.targetC, "blocked") == 11 })
		if err := j.Finalize(t.Context(), false); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		// One that starts while they are blocked waits as well.
		insert(t, s.srcDB, "blockedfirst", 10)
		block(true)
		j = open(t, s.spec("blockedfirst"))
		done := make(chan error, 1)
		go func() { done <- j.Run(t.Context()) }()
		kit.Until(t, "the status names the cause", func() bool {
			return strings.Contains(j.Status().Waiting,
				"setUserWriteBlockMode")
		})
		block(false)
		if err := <-done; err != nil || count(t, s.targetC, "blockedfirst") != 10 {
			t.Errorf("%v, %d documents", err, count(t, s.targetC, "blockedfirst"))
		}
	})
	t.Run("connections taken", func(t *testing.T) {
		lab.Nightly(t)
		s := s
		s.dst = lab.ForTest(t, lab.Options{Args: []string{"--maxConns", "16"},
			SetParameters: map[string]string{"enableTestCommands": "1"}})
		s.targetC = kit.Client(t, s.dst.URI())
		insert(t, s.srcDB, "taken", 10)
		spec := s.spec("taken")
		spec.Until = ""
		j := open(t, spec)
		ended := make(chan error, 1)
		go func() { ended <- j.Run(t.Context()) }()
		kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing })
		fail := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "times",
			Value: 20}}},
			{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"insert", "update", "find"}},
				{Key: "closeConnection", Value: true}}}}
		kit.Until(t, "a connection for the fail point",
			func() bool { return s.targetC.Database("admin").RunCommand(t.Context(), fail).Err() == nil })
		address := strings.TrimPrefix(strings.Split(s.dst.URI(), "/?")[0], "mongodb://")
		var others []net.Conn // each takes a connection, or is closed by the server at once
		kit.Until(t, "the status names the limit", func() bool {
			if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address); err == nil {
				others = append(others, c)
			}
			return strings.Contains(j.Status().Waiting, "takes 16 connections at once")
		})
		for _, c := range others {
			_ = c.Close()
		}
		if err := j.Finalize(t.Context(), false); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Run("no connection left", func(t *testing.T) {
		s := s
		s.dst = lab.ForTest(t, lab.Options{Args: []string{"--maxConns", "16"}})
		address := strings.TrimPrefix(strings.Split(s.dst.URI(), "/?")[0], "mongodb://")
		for range 16 { // each takes a connection, or is closed by the server at once
			c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
		}
		spec := s.spec("noneleft")
		var log lines
		spec.Target += "&serverSelectionTimeoutMS=8000"
		spec.Log = slog.New(slog.NewTextHandler(&log, nil))
		j, err := job.Open(t.Context(), spec)
		if err == nil {
			j.Close()
		}
		if err == nil || !strings.Contains(mongo.HintOf(err), "net.maxIncomingConnections") {
			t.Errorf("%v (%s)", err, mongo.HintOf(err))
		}
		if !log.has("waiting for the target to accept connections") {
			t.Error("the log does not name the wait")
		}
	})
	t.Run("compatibility lowered", func(t *testing.T) {
		level := func(v string) { s.admin(t, bson.D{{Key: "setFeatureCompatibilityVersion", Value: v}}) }
		_, ended := following(t, "lowered")
		level("5.0")
		t.Cleanup(func() { level("6.0") })
		if err := s.srcDB.Database("lowered").RunCommand(t.Context(), bson.D{{Key: "create", Value: "clustered"},
			{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
				{Key: "unique", Value: true}}}}).Err(); err != nil {
			t.Fatal(err)
		}
		err := <-ended
		if err == nil || errors.Is(err, context.Canceled) ||
			!strings.Contains(err.Error(), "featureCompatibilityVersion is 5.0: raise it with setFeatureCompatibilityVersion "+
				"to 6.0") {
			t.Errorf("%v", err)
		}
	})
}
