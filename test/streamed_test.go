package test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test/kit"
)

// outcome is how a scenario ends that change streams do not carry. Its zero value is equal sides.
type outcome struct {
	rejected string // why the precheck rejects it
	// named is what finalize, or a job that ends, says of schema changes that change streams do not report.
	named []string
	since bson.Timestamp // when the scenario's changes began, beside the job
}

// String is empty for equal sides.
func (o outcome) String() string {
	switch {
	case o.rejected != "":
		return "rejected: " + o.rejected
	case len(o.named) > 0:
		return "named: " + strings.Join(o.named, "\n")
	}
	return ""
}

// streams reports whether change streams have all of a scenario, or the job says what they do not have. The others are
// equal if all was there before the copy, or the precheck rejects their rules.
func (sc scenario) streams(way string) bool {
	rejected := regexp.MustCompile(`^skip_ttl`)
	unreported := regexp.MustCompile(`^(history_as_)?(apply_ops|views_dropped$)`)
	if !reportsSchema() { // the precheck says that system.js is not reported
		unreported = regexp.MustCompile(`^(history_as_)?(apply_ops|views_dropped$|system_js$)`)
	}
	if len(sc.skip)+len(sc.softDelete)+len(sc.history) > 0 && !reportsSchema() {
		return false
	}
	return !rejected.MatchString(sc.name) && (way == wayCopy || !unreported.MatchString(sc.name))
}

// reportsSchema reports a source whose change streams have all schema changes.
func reportsSchema() bool { return shared.sourceVer.AtLeast(6, 0) }

// rejectedBy skips a test of something that the precheck rejects with change streams, on older servers only if they do
// not report schema changes. TestStreamsReject has the rejections.
func rejectedBy(t *testing.T, older bool) {
	t.Helper()
	if kit.Streamed() && (!older || !reportsSchema()) {
		t.Skip("the precheck rejects it with change streams")
	}
}

// apart are cases by the jobs that they can share. One of those that leave documents out goes on without some. One with
// rules ends at a rename between databases, if it captures by change streams.
func apart(cases []*trial) [][]*trial {
	out := make([][]*trial, 4)
	for _, c := range cases {
		i := 0
		if c.sc.leavesOut {
			i = 1
		}
		r := c.sc
		if kit.Streamed() && len(r.filter)+len(r.skip)+len(r.fields)+len(r.softDelete)+len(r.history) > 0 {
			i += 2
		}
		out[i] = append(out[i], c)
	}
	return out
}

// refusal returns why the precheck rejects a scenario that change streams do not carry, "" if it does not. Nothing may
// be written then.
func refusal(t *testing.T, c *trial, err error) string {
	t.Helper()
	text, _, _ := strings.Cut(err.Error(), "\nthe job's log")
	if !kit.Streamed() || !strings.Contains(text, "precheck") || !strings.Contains(text, "change streams do not report") {
		return ""
	}
	dbs, err := shared.targetDB.ListDatabaseNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	for _, db := range dbs {
		if c.owns(db + ".") {
			t.Errorf("%s: it was rejected, and %s is on the target", c.base, db)
		}
	}
	return text
}

// changing notes when changes begin beside a job whose change streams do not report all of them.
func changing(t *testing.T, cases []*trial) {
	t.Helper()
	if !kit.Streamed() || reportsSchema() || len(cases) == 0 || cases[0].way == wayCopy {
		return
	}
	raw, err := shared.sourceDB.Database("local").Collection("oplog.rs").FindOne(t.Context(), bson.D{},
		options.FindOne().SetSort(d("$natural", -1))).Raw()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		c.since.T, c.since.I = raw.Lookup("ts").Timestamp()
	}
}

// unreported reports a scenario whose changes were, by the oplog, such that change streams before 6.0 do not report.
func (c *trial) unreported(ctx context.Context) bool {
	if c.since.IsZero() {
		return false
	}
	ours := "^" + regexp.QuoteMeta(c.base) + `(-[^.]*)?\.`
	var reported bson.A
	for _, name := range []string{"drop", "renameCollection", "dropDatabase", "applyOps", "commitTransaction",
		"abortTransaction"} {
		reported = append(reported, d("o."+name, d("$exists", true)))
	}
	n, err := shared.sourceDB.Database("local").Collection("oplog.rs").CountDocuments(ctx,
		d("ts", d("$gt", c.since), "$or", a(
			d("op", "c", "ns", bson.Regex{Pattern: ours + `\$cmd$`}, "$nor", reported),
			d("o.applyOps", d("$elemMatch", d("op", "c", "ns", bson.Regex{Pattern: ours}))), // in a transaction
			d("ns", bson.Regex{Pattern: ours + `system\.(views|buckets\.)`}))))
	return err == nil && n > 0
}
