package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test/commands"
	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
)

// More actions.
const (
	// End is SIGTERM and the process's end.
	End Action = "end"
	// PauseJob, ResumeJob and Rate (so many documents a second, its first
	// argument; 0 is all) are the operator's.
	PauseJob  Action = "pause-job"
	ResumeJob Action = "resume-job"
	Rate      Action = "rate"
	// Clone makes the target's databases what the source's are, as a copy of files
	// does. From then on the job follows from there, and copies nothing.
	Clone Action = "clone"
)

// operator does what the operator does to a process.
func (p *play) operator(ctx context.Context, e Event) error {
	m := p.procs[e.Process]
	if m == nil || m.over() {
		return fmt.Errorf("it does not run: %w", errLeftOut)
	}
	if e.Do == End {
		m.heard = true // it ends because it is told to
		m.signal(syscall.SIGTERM)
		select {
		case <-m.Done():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("it does not end: %w", ctx.Err())
		}
	}
	args := []string{"throttle", "--max-rate-docs", strings.Join(e.Args, "")}
	switch e.Do {
	case PauseJob:
		args = []string{"pause"}
	case ResumeJob:
		args = []string{"resume"}
	}
	// One that has not read its checkpoint yet does not know that it is paused,
	// and forgets that it was resumed.
	for s := m.Status(ctx); s.Phase == "" || e.Do == ResumeJob && s.Phase == "starting" && !s.Paused; s = m.Status(ctx) {
		if m.over() {
			return fmt.Errorf("it has ended: %w", errLeftOut)
		}
		if err := nap(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	_, err := m.Command(ctx, args...)
	return err
}

// settles waits for the first process, if it runs, to catch up; false if it does not.
func (p *play) settles(ctx context.Context) bool {
	m := p.procs[0]
	if !p.tr.Settle || m == nil || m.over() {
		return true
	}
	if m.Status(ctx).Paused {
		_ = p.operator(ctx, Event{Do: ResumeJob})
	}
	_ = p.operator(ctx, Event{Do: Rate, Args: []string{"0"}})
	err := p.await(ctx, p.source, Event{Do: Await, Want: "caught-up", For: time.Minute})
	if err != nil {
		p.note("%7.3f s  not caught up: %v; it waits for %q", time.Since(p.began).Seconds(), err, m.Status(ctx).Waiting)
	}
	return err == nil || m.over()
}

// clone copies collections, indexes and documents while nobody writes.
func (p *play) clone(ctx context.Context) error {
	from, err := p.source.client(ctx)
	if err != nil {
		return err
	}
	to, err := p.target.client(ctx)
	if err != nil {
		return err
	}
	var at bson.Timestamp
	for _, st := range p.source.states(ctx) {
		if st.Primary {
			at = st.LastWrite.OpTime.TS
		}
	}
	p.startAt = fmt.Sprintf("%d:%d", at.T, at.I)
	for _, name := range history.Databases() {
		db := history.Name(Database, name)
		specs, err := from.Database(db).ListCollectionSpecifications(ctx, D())
		if err != nil {
			return err
		}
		for _, spec := range specs {
			if err := cloneOne(ctx, from.Database(db), to.Database(db), spec); err != nil {
				return err
			}
		}
	}
	return nil
}

func cloneOne(ctx context.Context, from, to *mongo.Database, spec mongo.CollectionSpecification) error {
	create := D("create", spec.Name)
	els, err := spec.Options.Elements()
	if err != nil {
		return err
	}
	for _, el := range els {
		create = append(create, bson.E{Key: el.Key(), Value: el.Value()})
	}
	if err := to.RunCommand(ctx, create).Err(); err != nil {
		return err
	}
	indexes, err := all(from.RunCommandCursor(ctx, D("listIndexes", spec.Name)))(ctx)
	if err != nil {
		return err
	}
	if err := to.RunCommand(ctx, D("createIndexes", spec.Name, "indexes", indexes)).Err(); err != nil {
		return err
	}
	docs, err := all(from.RunCommandCursor(ctx, D("find", spec.Name)))(ctx)
	if err != nil || len(docs) == 0 {
		return err
	}
	return to.RunCommand(ctx, D("insert", spec.Name, "documents", docs)).Err()
}

// all reads a cursor to its end.
func all(cur *mongo.Cursor, err error) func(context.Context) ([]bson.Raw, error) {
	return func(ctx context.Context) (out []bson.Raw, _ error) {
		if err != nil {
			return nil, err
		}
		for cur.Next(ctx) {
			out = append(out, bytes.Clone(cur.Current))
		}
		return out, errors.Join(cur.Err(), cur.Close(ctx))
	}
}

// step runs a step, and notes what it says of documents that somebody else has
// changed on the target.
func (p *play) step(ctx context.Context, client *mongo.Client, e Event) (err error) {
	s := *e.Step
	if s.Do != history.Run || s.Txn != 0 || p.open {
		p.open = p.open || s.Txn != 0
		if p.steps == nil || p.steps.Client != client {
			p.steps = &history.Runner{Client: client, Database: Database, Hook: p.hook,
				Tolerate: func(error) bool { return true }}
		}
		return p.steps.Ordered(ctx, []history.Step{s})
	}
	if e.On != Target && kit.Streamed() && !s.Streams(commands.ReadArgs(p.tr.Args) != nil) {
		return fmt.Errorf("change streams do not carry it: %w", errLeftOut)
	}
	s.Cmd, err = withUUIDs(ctx, client, s.Cmd)
	if err != nil {
		return err
	}
	if p.model != nil && e.On != Target {
		p.model.look(ctx, p)
	}
	reply, err := history.Reply(ctx, client, Database, s)
	if err != nil || changed(s.Cmd, reply) == 0 {
		return err
	}
	if p.model != nil {
		p.model.happened(s, e.On == Target)
	}
	if e.On == Target {
		p.noteDrop(s)
		p.claims.foreign(s)
	} else {
		if p.retained != nil {
			p.retained.take(s.Cmd)
		}
		p.met = p.claims.ours(s, readRules(p.tr.Args)) || p.met
	}
	return nil
}

// changed is how many documents a command has changed, 1 if it is none of
// writes.
func changed(cmd, reply bson.Raw) int {
	var r struct {
		N        int        `bson:"n"`
		Modified int        `bson:"nModified"`
		Upserted []bson.Raw `bson:"upserted"`
	}
	_ = bson.Unmarshal(reply, &r)
	switch cmd.Index(0).Key() {
	case "insert", "delete":
		return r.N
	case "update":
		return r.Modified + len(r.Upserted)
	}
	return 1
}

// claims are the documents, by namespace of the target and _id, that somebody
// else has changed there. Unless the source has written since what the job has
// to see meet that, they are not the job's to judge.
type claims map[string]map[string]claim

// claim is what somebody else has done to a document.
type claim int

const (
	removed  claim = 1 + iota // deleted
	changes                   // changed
	inserted                  // inserted
	settled                   // the source has written since, and the job has to see it
	guest                     // inserted, and the source has written since: theirs as long as the source has none
)

// written are the collection, the command and the _ids of a write.
func written(cmd bson.Raw) (coll, op string, out []string) {
	first := cmd.Index(0)
	op = first.Key()
	if op != "insert" && op != "update" && op != "delete" {
		return "", op, nil
	}
	var w struct {
		Documents        []bson.Raw
		Updates, Deletes []struct{ Q bson.Raw }
	}
	_ = bson.Unmarshal(cmd, &w)
	for _, d := range w.Documents {
		out = append(out, d.Lookup("_id").String())
	}
	for _, d := range append(w.Updates, w.Deletes...) {
		out = append(out, d.Q.Lookup("_id").String())
	}
	return first.Value().StringValue(), op, out
}

// foreign notes a write on the target.
func (c claims) foreign(s history.Step) {
	coll, op, ids := written(s.Cmd)
	for _, id := range ids {
		ns := history.Name(Database, s.DB) + "." + coll
		if c[ns] == nil {
			c[ns] = map[string]claim{}
		}
		c[ns][id] = map[string]claim{"delete": removed, "update": changes, "insert": inserted}[op]
	}
}

// ours notes a write on the source. Whatever it does to a document that was
// deleted, and each write of a whole document, has to come out right or to be
// told; an update of a few fields says nothing of the others. met tells of
// writes that may have ended a conflict: the job may never meet the one before,
// for it takes both together.
func (c claims) ours(s history.Step, r rules) (met bool) {
	coll, op, ids := written(s.Cmd)
	ns := r.target(history.Name(Database, s.DB) + "." + coll)
	for _, id := range ids {
		was, whole := c[ns][id], op != "update" || replaces(s.Cmd)
		if was == 0 {
			continue
		}
		met = met || whole
		switch {
		case was == guest:
		case was == inserted && whole:
			c[ns][id] = guest
		case whole || was == removed:
			c[ns][id] = settled
		}
	}
	switch op {
	case "drop":
		delete(c, r.target(history.Name(Database, s.DB)+"."+s.Cmd.Index(0).Value().StringValue()))
	case "renameCollection":
		name := func(key string) string {
			return r.target(strings.Replace(s.Cmd.Lookup(key).StringValue(), "DB", Database, 1))
		}
		from, to := name("renameCollection"), name("to")
		delete(c, to)
		if have := c[from]; have != nil {
			c[to] = have
			delete(c, from)
		}
	}
	return met
}

// explain adds the documents of a namespace that are not the job's to judge.
// want is what the source has.
func (c claims) explain(ns string, want map[string]bson.Raw, ids map[string]bool) {
	for id, what := range c[ns] {
		if what != settled && (what != guest || want[id] == nil) {
			ids[id] = true
		}
	}
}

// replaces reports whether an update writes a whole document.
func replaces(cmd bson.Raw) bool {
	u, ok := cmd.Lookup("updates", "0", "u").DocumentOK()
	if !ok {
		return false
	}
	first, err := u.IndexErr(0)
	return err != nil || !strings.HasPrefix(first.Key(), "$")
}
