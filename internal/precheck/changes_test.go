package precheck

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
)

// TestSpool: a directory for changes is looked at where a copy may need it.
func TestSpool(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		dir    string
		most   int64
		change func(*planner)
		want   []string
	}{
		{"room", dir, 1, nil, []string{"ok spool: "}},
		{"no room, long window", dir, math.MaxInt64, nil, []string{"ok spool: "}},
		{"no room", dir, math.MaxInt64, func(p *planner) { p.short = true }, []string{"warn spool: "}},
		{"no directory", file, 1, nil, []string{"fail spool: changes cannot be kept on local disk, in " + file}},
		{"none", "", 0, nil, nil},
		{"incremental", file, 1, func(p *planner) { p.Mode = state.ModeIncremental }, nil},
		{"no window", file, 1, func(p *planner) { p.WarnWindow = 0 }, nil},
		{"of shards", file, 1, func(p *planner) { p.Source.Info.Kind = mongo.KindSharded }, nil},
		{"copying", file, 1, func(p *planner) { p.resumes(state.PhaseCopying) }, []string{"fail spool: "}},
		{"following", file, 1, func(p *planner) { p.resumes(state.PhaseFollowing) }, nil},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
		p.WarnWindow, p.Spool = time.Hour, oplog.NewSpooler(p.Source, oplog.SpoolOptions{Dir: c.dir, MaxBytes: c.most})
		if c.change != nil {
			c.change(p)
		}
		if err := (changes{p}).spool(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want...) })
	}
}

// TestNoWindow: the oplog's window is not checked where no oplog is read.
func TestNoWindow(t *testing.T) {
	for name, change := range map[string]func(*planner){
		"standalone": func(p *planner) { p.Source.Info.Kind = mongo.KindStandalone },
		"unread":     func(p *planner) { p.unread = true },
		"expiring":   func(p *planner) { p.job.Expiring = true },
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
		change(p)
		if err := (changes{p}).oplogWindow(t.Context()); err != nil || len(p.plan.Checks) > 0 {
			t.Errorf("%s: %v, %v", name, p.lines(), err)
		}
	}
}
