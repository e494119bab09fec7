package theme

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"sort"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/history"
)

// claims are the documents, by namespace of the target, that somebody else has
// changed there and the source has not since: what they are is not the job's.
type claims map[string]map[string]*claim

type claim struct {
	deleted bool // or else inserted or changed
	doc     bool // inserted: it is there in the end, if only they have it
}

func (c claims) of(ns string) map[string]*claim {
	if c[ns] == nil {
		c[ns] = map[string]*claim{}
	}
	return c[ns]
}

// ids are the _ids that a write names, as text.
func ids(cmd bson.Raw) (coll, op string, out []string) {
	first := cmd.Index(0)
	op, coll = first.Key(), first.Value().StringValue()
	var w struct {
		Documents []bson.Raw
		Updates   []struct{ Q bson.Raw }
		Deletes   []struct{ Q bson.Raw }
	}
	_ = bson.Unmarshal(cmd, &w)
	for _, d := range w.Documents {
		out = append(out, d.Lookup("_id").String())
	}
	for _, d := range w.Updates {
		out = append(out, d.Q.Lookup("_id").String())
	}
	for _, d := range w.Deletes {
		out = append(out, d.Q.Lookup("_id").String())
	}
	return coll, op, out
}

// target notes what somebody else has done.
func (c claims) target(p *player, s history.Step) {
	switch s.Cmd.Index(0).Key() {
	case "insert", "update", "delete":
	default:
		return
	}
	coll, op, list := ids(s.Cmd)
	for _, id := range list {
		c.of(history.Name(p.base, s.DB) + "." + coll)[id] = &claim{deleted: op == "delete", doc: op == "insert"}
	}
}

// source notes that a write of the source has to be seen on the target: an
// update of a document that is there still tells nobody that other fields differ.
func (c claims) source(p *player, s history.Step) {
	switch s.Cmd.Index(0).Key() {
	case "insert", "update", "delete":
		coll, op, list := ids(s.Cmd)
		ns := p.target_(history.Name(p.base, s.DB) + "." + coll)
		for _, id := range list {
			if cl := c[ns][id]; cl != nil && (op != "update" || cl.deleted || replaces(s.Cmd)) {
				delete(c[ns], id)
			}
		}
	case "drop":
		delete(c, p.target_(history.Name(p.base, s.DB)+"."+s.Cmd.Index(0).Value().StringValue()))
	case "renameCollection":
		from, to := p.target_(p.named(s.Cmd.Lookup("renameCollection").StringValue())), p.target_(p.named(s.Cmd.Lookup("to").StringValue()))
		delete(c, to)
		if have := c[from]; have != nil {
			c[to] = have
			delete(c, from)
		}
	}
}

// replaces tells whether an update is a replacement.
func replaces(cmd bson.Raw) bool {
	u, ok := cmd.Lookup("updates", "0", "u").DocumentOK()
	if !ok {
		return false
	}
	first, err := u.IndexErr(0)
	return err != nil || !strings.HasPrefix(first.Key(), "$")
}

// target_ is the name of a source namespace on the target.
func (p *player) target_(ns string) string {
	db, coll, _ := strings.Cut(ns, ".")
	to := ns
	for _, r := range p.t.Rename {
		a, b, _ := strings.Cut(p.named(r), "=")
		if a == ns {
			return b
		}
		if a == db {
			to = b + "." + coll
		}
	}
	return to
}

func (p *player) excluded(ns string) bool {
	for _, x := range p.t.Exclude {
		if ok, _ := path.Match(p.named(x), ns); ok {
			return true
		}
	}
	return false
}

func (p *player) ours(ns string) bool {
	return strings.HasPrefix(ns, p.base+".") || strings.HasPrefix(ns, p.base+"-")
}

// judge compares, unless the job has ended and said why.
func (p *player) judge(ctx context.Context, err error) verdict {
	switch {
	case errors.Is(err, errStopped):
		return verdict{kind: stops, text: err.Error()}
	case errors.Is(err, errStuck):
		return verdict{kind: stuck, text: err.Error()}
	case err != nil:
		return verdict{kind: broken, text: err.Error()}
	}
	v := verdict{}
	if len(p.told) > 0 {
		v.told = p.told[len(p.told)-1]
	}
	if text := p.foreignLost(ctx); text != "" {
		v.kind, v.text = lost, text
		return v
	}
	if p.proc == nil && !p.catalogs { // it ended again and again, and said why
		return v
	}
	diffs, err := test.Compare(ctx, p.c.source, p.c.target, test.CompareOptions{
		Source: func(ns string) bool { return p.ours(ns) && !p.excluded(ns) }, Target: p.ours, Name: p.target_,
	})
	if err != nil {
		return verdict{kind: broken, text: err.Error()}
	}
	var bad []string
	for _, d := range diffs {
		text, err := p.unexplained(ctx, d)
		if err != nil {
			return verdict{kind: broken, text: err.Error()}
		}
		if text != "" && !(p.catalogs && !documents(d)) {
			bad = append(bad, fmt.Sprintf("%s: %.1500s", d.NS, text))
		}
	}
	if len(bad) > 0 {
		v.kind, v.text = silent, strings.Join(bad, "\n")
		if v.told != "" {
			v.kind = forgot
			v.text += "\n--- it had ended with\n" + v.told
		}
	}
	return v
}

// foreignLost tells which documents of collections that only the target has are
// gone.
func (p *player) foreignLost(ctx context.Context) string {
	var gone []string
	for ns, docs := range p.claims {
		db, coll, _ := strings.Cut(ns, ".")
		if !strings.HasPrefix(coll, "own") {
			continue
		}
		have, err := read(ctx, p.c.target, db, coll)
		if err != nil {
			return err.Error()
		}
		for id := range docs {
			if have[id] == nil {
				gone = append(gone, ns+" _id "+id)
			}
		}
	}
	sort.Strings(gone)
	return strings.Join(gone, ", ")
}

// unexplained is what is left of a difference when that is taken away which
// letters tell of, and which somebody else has made.
func (p *player) unexplained(ctx context.Context, d test.Difference) (string, error) {
	if strings.Contains(d.What, "is on the target alone") && !strings.Contains(d.What, "index") {
		if c := p.claims[d.NS]; len(c) > 0 || strings.Contains(d.NS, ".own") {
			return "", nil
		}
		return d.What, nil
	}
	if !documents(d) {
		return d.What, nil
	}
	to := p.target_(d.NS)
	fromDB, fromColl, _ := strings.Cut(d.NS, ".")
	toDB, toColl, _ := strings.Cut(to, ".")
	want, err := read(ctx, p.c.source, fromDB, fromColl)
	if err != nil {
		return "", err
	}
	have, err := read(ctx, p.c.target, toDB, toColl)
	if err != nil {
		return "", err
	}
	excused, err := p.letters(ctx, to)
	if err != nil {
		return "", err
	}
	any := false
	for id := range union(want, have) {
		if bytes.Equal(want[id], have[id]) || excused[id] || p.claims[to][id] != nil {
			continue
		}
		any = true
	}
	if !any && (len(excused) > 0 || len(p.claims[to]) > 0) {
		return "", nil
	}
	return d.What, nil
}

// documents tells differences of documents from those of catalogs.
func documents(d test.Difference) bool {
	return strings.Contains(d.What, "documents are ") || strings.HasPrefix(d.What, "the order differs")
}

func union(a, b map[string]bson.Raw) map[string]bool {
	out := map[string]bool{}
	for k := range a {
		out[k] = true
	}
	for k := range b {
		out[k] = true
	}
	return out
}

// letters are the documents of a namespace of the target that the job says are
// not as on the source.
func (p *player) letters(ctx context.Context, ns string) (map[string]bool, error) {
	cur, err := p.c.target.Database("millrace").Collection("deadletters").Find(ctx, bson.D{{Key: "job", Value: p.base}, {Key: "ns", Value: ns}})
	if err != nil {
		return nil, err
	}
	var list []struct {
		State string        `bson:"state"`
		ID    bson.RawValue `bson:"documentId"`
		Other bson.RawValue `bson:"otherId"`
	}
	if err := cur.All(ctx, &list); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, l := range list {
		if l.State != "settled" {
			out[l.ID.String()] = true
		}
	}
	return out, nil
}

func read(ctx context.Context, c *mongo.Client, db, coll string) (map[string]bson.Raw, error) {
	cur, err := c.Database(db).RunCommandCursor(ctx, bson.D{{Key: "find", Value: coll}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(ctx) }()
	out := map[string]bson.Raw{}
	for cur.Next(ctx) {
		out[cur.Current.Lookup("_id").String()] = bytes.Clone(cur.Current)
	}
	return out, cur.Err()
}
