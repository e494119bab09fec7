package shards

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/shardkey"
)

// wrote is an entry of an oplog.
func wrote(t *testing.T, text string) bson.Raw {
	t.Helper()
	var doc bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &doc); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	raw, err := bson.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func newReplay(t *testing.T, key string) *replay {
	t.Helper()
	bound := func(k int) bson.Raw {
		var doc bson.D
		for i, f := range shardkey.Parse(wrote(t, key)) {
			v := any(k)
			if i > 0 {
				v = bson.MinKey{}
			}
			doc = append(doc, bson.E{Key: f.Path, Value: v})
		}
		raw, err := bson.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	return &replay{docs: map[string]*docState{}, key: shardkey.Parse(wrote(t, key)),
		migration: ownership.NewMigration(bound(100), bound(200))}
}

const idOne = `{"$numberInt":"1"}`

// TestReplay: what the recipient's oplog tells of a document whose chunk, [100, 200),
// comes. Before the donor gives the document there may be an orphan of an earlier stay,
// or a document with the same _id and another shard key.
func TestReplay(t *testing.T) {
	const (
		comes    = `{"op":"i","o":{"_id":1,"k":150,"n":0},"fromMigrate":true}`
		changes  = `{"op":"u","o":{"$v":1,"$set":{"n":5}},"o2":{"k":150,"_id":1}}`
		changes2 = `{"op":"u","o":{"$v":2,"diff":{"u":{"n":6}}},"o2":{"k":150,"_id":1}}`
		replaced = `{"op":"u","o":{"_id":1,"k":150,"n":9},"o2":{"k":150,"_id":1},"fromMigrate":true}`
		cleaned  = `{"op":"d","o":{"_id":1},"fromMigrate":true}`
		deleted  = `{"op":"d","o":{"k":150,"_id":1}}`
		other    = `{"op":"i","o":{"_id":1,"k":472}}`
		otherChg = `{"op":"u","o":{"$v":1,"$set":{"n":7}},"o2":{"k":472,"_id":1}}`
	)
	for name, c := range map[string]struct {
		entries      []string
		reported, is string
		unknown      bool
	}{
		"given, and written to": {entries: []string{comes, changes, changes2}, reported: `{"_id":1,"k":150,"n":0}`,
			is: `{"_id":1,"k":150,"n":6}`},
		"the donor's word last": {entries: []string{comes, changes, replaced}, reported: `{"_id":1,"k":150,"n":9}`,
			is: `{"_id":1,"k":150,"n":9}`},
		"deleted here":              {entries: []string{comes, deleted}, reported: `{"_id":1,"k":150,"n":0}`},
		"an orphan that is cleaned": {entries: []string{changes, changes2, cleaned}},
		"an orphan, then the document": {entries: []string{changes2, cleaned, comes, changes},
			reported: `{"_id":1,"k":150,"n":0}`, is: `{"_id":1,"k":150,"n":5}`},
		"an orphan that stays": {entries: []string{changes}, unknown: true},
		"another key before": {entries: []string{otherChg, comes, changes}, reported: `{"_id":1,"k":150,"n":0}`,
			is: `{"_id":1,"k":150,"n":5}`},
		"another key after": {entries: []string{comes, changes, cleaned, other, otherChg}},
		"another key, gone unseen, again": {entries: []string{other, otherChg, comes, deleted},
			reported: `{"_id":1,"k":150,"n":0}`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newReplay(t, `{"k":1}`)
			d := &docState{}
			p.docs[idOne] = d
			for _, e := range c.entries {
				if err := p.apply(wrote(t, e)); err != nil {
					t.Fatal(err)
				}
			}
			same(t, "reported", d.donated, c.reported)
			same(t, "is", d.present, c.is)
			if d.known == c.unknown {
				t.Errorf("known: %v", d.known)
			}
		})
	}
}

// TestDonor: whether the donor still has a document of the chunk, or had deleted it, or
// given it another shard key.
func TestDonor(t *testing.T) {
	for name, c := range map[string]struct {
		key, doc string
		entries  []string
		here     bool
	}{
		"deleted":                {entries: []string{`{"op":"d","o":{"k":150,"_id":1}}`}},
		"deleted, without a key": {entries: []string{`{"op":"d","o":{"_id":1}}`}},
		"updated": {entries: []string{`{"op":"u","o":{"$v":1,"$set":{"n":5}},"o2":{"k":150,"_id":1}}`},
			here: true},
		"deleted, another comes": {entries: []string{`{"op":"d","o":{"k":150,"_id":1}}`,
			`{"op":"i","o":{"k":472,"_id":1}}`}},
		"deleted, and back": {entries: []string{`{"op":"d","o":{"k":150,"_id":1}}`, `{"op":"i","o":{"k":151,"_id":1}}`},
			here: true},
		"another key": {entries: []string{`{"op":"u","o":{"$v":2,"diff":{"u":{"k":14}}},"o2":{"k":150,"_id":1}}`}},
		"another key, and back": {entries: []string{`{"op":"u","o":{"$v":2,"diff":{"u":{"k":14}}},"o2":{"k":150,"_id":1}}`,
			`{"op":"u","o":{"$v":1,"$set":{"k":150}},"o2":{"k":14,"_id":1}}`}, here: true},
		"another that is updated": {entries: []string{`{"op":"d","o":{"k":150,"_id":1}}`,
			`{"op":"u","o":{"$v":1,"$set":{"n":5}},"o2":{"k":472,"_id":1}}`}},
		"a key inside, changed": {key: `{"k.v":1,"k.w":1}`, doc: `{"_id":1,"k":{"v":150,"w":1}}`,
			entries: []string{`{"op":"u","o":{"$v":2,"diff":{"sk":{"u":{"v":14}}}},"o2":{"k.v":150,"k.w":1,"_id":1}}`}},
		"a key inside": {key: `{"k.v":1,"k.w":1}`, doc: `{"_id":1,"k":{"v":150,"w":1}}`,
			entries: []string{`{"op":"u","o":{"$v":2,"diff":{"sk":{"u":{"w":14}}}},"o2":{"k.v":150,"k.w":1,"_id":1}}`},
			here:    true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.key == "" {
				c.key, c.doc = `{"k":1}`, `{"_id":1,"k":150}`
			}
			p := newReplay(t, c.key)
			d := &docState{donated: wrote(t, c.doc), present: wrote(t, c.doc)}
			p.docs[idOne] = d
			for _, e := range c.entries {
				p.applyDonor(wrote(t, e))
			}
			if (d.present != nil) != c.here {
				t.Errorf("%s", d.present)
			}
		})
	}
}

func same(t *testing.T, what string, got bson.Raw, want string) {
	t.Helper()
	if want == "" {
		if got != nil {
			t.Errorf("%s: %s, want none", what, got)
		}
		return
	}
	if got.String() != wrote(t, want).String() {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}
