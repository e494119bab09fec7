package verify

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// TestScope: what is not compared is never called the same, and databases of
// somebody else on the target are no difference.
func TestScope(t *testing.T) {
	src, dst := cluster(t, "6.0", "rs:1"), cluster(t, "5.0", "rs:1")
	db := "scope" + bson.NewObjectID().Hex()
	for _, c := range []*mongo.Cluster{src, dst} {
		t.Cleanup(func() {
			for _, name := range []string{db, db + "other"} {
				_ = c.Client.Database(name).Drop(context.Background())
			}
		})
		insert(t, c, db+".c", kit.Raw(bson.D{{Key: "_id", Value: 1}}))
	}
	insert(t, dst, db+"other.c", kit.Raw(bson.D{{Key: "_id", Value: 1}}))
	compare := func(source, target *mongo.Cluster, rules transform.Config) (*Report, error) {
		t.Helper()
		set, err := transform.New(rules)
		if err != nil {
			t.Fatal(err)
		}
		if err := different(source, target); err != nil {
			return nil, err
		}
		return New(source, target, Options{}).compareClusters(t.Context(), set, nil)
	}
	in := func(p ...string) transform.Config { return transform.Config{Include: p} }
	for want, c := range map[string]struct {
		target *mongo.Cluster
		rules  transform.Config
	}{
		"the same deployment":                        {src, in(db)},
		"--include " + db + "typo.* matches nothing": {dst, in(db, db+"typo.*")},
		"--include " + db + ".* matches nothing":     {dst, transform.Config{Include: []string{db}, Exclude: []string{db}}},
		"leave nothing to compare":                   {dst, transform.Config{Exclude: []string{"*.*"}}},
	} {
		r, err := compare(src, c.target, c.rules)
		if err == nil || !strings.Contains(err.Error(), want) || mongo.HintOf(err) == "" {
			t.Errorf("%v, %+v, want %q", err, r, want)
		}
	}
	for _, c := range []struct {
		rules     transform.Config
		same, say bool
	}{
		{in(db + ".*"), true, false},
		{in(db + "*.*"), false, false},                                           // named, so it counts
		{transform.Config{Rename: []string{"no=" + db + "other"}}, false, false}, // named, too
		{transform.Config{Exclude: []string{"nothing.*"}}, true, true},
	} {
		r, err := compare(src, dst, c.rules)
		if err != nil || r.Same != c.same || strings.Contains(strings.Join(r.Notes, "\n"),
			"database "+db+"other of the target was not compared") != c.say {
			t.Errorf("%+v: %v, %+v", c.rules, err, r)
		}
	}
	insert(t, dst, db+".more", kit.Raw(bson.D{{Key: "_id", Value: 1}}))
	if r, err := compare(src, dst, transform.Config{}); err != nil || r.Same || r.Count != 1 {
		t.Errorf("more in a database of the source: %v, %+v", err, r)
	}
}
