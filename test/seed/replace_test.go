package seed

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// replacement is a member of a set that is stopped and gets its data anew.
type replacement struct {
	*ground
	lost *lab.Member
}

// newReplacement chooses the third member of a set: neither primary nor source.
func newReplacement(t *testing.T, version string) *replacement {
	t.Helper()
	g := newGround(t, version, "rs:3")
	p, err := g.set.Primary(t.Context())
	must(t, err)
	return &replacement{ground: g, lost: g.set.Members()[3-p-g.member.Index]}
}

// replace starts a puller that brings the member back.
func (r *replacement) replace(dir string, more ...string) newcomer {
	r.t.Helper()
	n := newcomer{host: r.lost.Host(), report: filepath.Join(r.t.TempDir(), "report.json")}
	args := append([]string{"--report", n.report, "--set-uri", r.set.DirectURI(r.member.Index), "--replace", n.host},
		more...)
	args = append(append(args, "--start", "--", r.program), memberFlags(r.set.Name(), dir, strconv.Itoa(r.lost.Port))...)
	n.Process = r.pull(dir, args...)
	r.t.Cleanup(func() { endMember(n.report) })
	return n
}

// configuration is the set's, with its version: what has not been touched is equal.
// It is without the term, which elections change.
func (r *replacement) configuration() string {
	r.t.Helper()
	var reply struct{ Config bson.D }
	must(r.t, kit.Client(r.t, r.set.URI()).Database("admin").
		RunCommand(r.t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply))
	return fmt.Sprint(slices.DeleteFunc(reply.Config, func(e bson.E) bool { return e.Key == "term" }))
}

// TestEmptiedMemberIsSeeded is the procedure that is published for a member whose
// data are to be made anew: it is stopped, its data are removed, it is started
// again, here on files. Writes go on, and the copy is killed in the middle.
func TestEmptiedMemberIsSeeded(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	r := newReplacement(t, "6.0")
	db := kit.Client(t, r.set.URI()).Database("emptied")
	fill(t, db) // before: an index is not built while a voting member is down
	must(t, r.lost.Stop())
	stop := write(t, db)
	before := r.configuration()
	must(t, os.RemoveAll(r.lost.DBPath))
	r.killedInTheMiddle()
	n := r.replace(r.lost.DBPath)
	if got := r.joined(n); !got.Result.Resumed {
		t.Errorf("the second copy did not go on with the first: %+v", got)
	}
	stop()
	r.same(n, "emptied")
	if after := r.configuration(); after != before {
		t.Errorf("the set's configuration changed: %s, was %s", after, before)
	}
}

// oldTable is a file of the member that was lost, which goes before the copy comes.
const oldTable = "collection-0-1.wt"

// killedInTheMiddle begins a copy and kills it when some of it is there.
func (r *replacement) killedInTheMiddle() {
	t := r.t
	t.Helper()
	agent := r.serve("--max-rate-bytes", "20MB")
	first := r.replace(r.lost.DBPath)
	kit.Until(t, "some of the copy is there", func() bool {
		select {
		case <-first.Done():
			t.Fatalf("the puller ended: %s", first.Output())
		default:
		}
		tables, _ := filepath.Glob(filepath.Join(r.lost.DBPath, "collection-*.wt"))
		return half(r.lost.DBPath) && len(tables) > 0 && !slices.Contains(tables, filepath.Join(r.lost.DBPath, oldTable))
	})
	first.Kill()
	if !half(r.lost.DBPath) {
		t.Fatal("the copy was complete before it was killed")
	}
	refuses(t, r.program, r.set.Name(), r.lost.DBPath)
	agent.Kill()
	kit.Until(t, "the source is let go", func() bool { return !isLocked(t, r.uri()) })
	r.serve()
}

// TestMemberIsReplaced: the old data are there still, of a member that was killed.
func TestMemberIsReplaced(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			r := newReplacement(t, version)
			db := kit.Client(t, r.set.URI()).Database("replaced")
			fill(t, db)
			stop := write(t, db)
			must(t, r.lost.Kill())
			must(t, os.WriteFile(filepath.Join(r.lost.DBPath, oldTable), []byte("an old table"), 0o600))
			must(t, os.WriteFile(filepath.Join(r.lost.DBPath, "keyfile"), []byte("not the server's"), 0o600))
			before := r.configuration()
			r.killedInTheMiddle()
			n := r.replace(r.lost.DBPath)
			r.joined(n)
			stop()
			r.same(n, "replaced")
			if after := r.configuration(); after != before {
				t.Errorf("the set's configuration changed: %s, was %s", after, before)
			}
			if raw, err := os.ReadFile(filepath.Join(r.lost.DBPath, "keyfile")); err != nil ||
				string(raw) != "not the server's" {
				t.Errorf("a file of somebody else: %q, %v", raw, err)
			}
		})
	}
}

// TestReplacementIsRefused: nothing is touched in a directory that may be another's,
// and none of a member that runs.
func TestReplacementIsRefused(t *testing.T) {
	t.Parallel()
	r := newReplacement(t, "6.0")
	must(t, r.lost.Stop())
	r.serve()
	other := lab.ForTest(t, lab.Options{})
	foreign := filepath.Join(t.TempDir(), "foreign")
	must(t, other.Members()[0].Stop())
	must(t, os.CopyFS(foreign, os.DirFS(other.Members()[0].DBPath)))
	linked := filepath.Join(t.TempDir(), "linked")
	must(t, os.CopyFS(linked, os.DirFS(r.lost.DBPath)))
	must(t, os.Rename(filepath.Join(linked, "journal"), linked+"-journal"))
	must(t, os.Symlink(linked+"-journal", filepath.Join(linked, "journal")))
	for _, c := range []struct {
		name, dir, want string
		more            []string
	}{
		{"the directory of another set", foreign, "no configuration of this set", nil},
		{"a journal behind a link", linked, "a link", nil},
		{"a member that runs", r.lost.DBPath, "is replaced only when it is stopped", []string{"--replace", r.member.Host()}},
		{"no member", r.lost.DBPath, "has no member", []string{"--replace", "127.0.0.1:1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			storage, err := os.ReadFile(filepath.Join(c.dir, "storage.bson"))
			must(t, err)
			n := r.replace(c.dir, c.more...)
			if err := n.Wait(2 * time.Minute); err == nil || !strings.Contains(n.Output(), c.want) {
				t.Errorf("%v\n%s", err, n.Output())
			}
			after, err := os.ReadFile(filepath.Join(c.dir, "storage.bson"))
			if err != nil || string(after) != string(storage) {
				t.Errorf("storage.bson was touched: %v", err)
			}
		})
	}
}
