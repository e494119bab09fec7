package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/verify"
)

// followingJob makes a job that a worker has, which follows.
func (b *serviceBench) followingJob(name string) {
	b.t.Helper()
	file := filepath.Join(b.t.TempDir(), name+".yaml")
	if err := os.WriteFile(file, []byte("source: env:A\ntarget: env:B\n"), 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.expect(cli.ExitOK, "jobs create --name "+name+" -f "+file)
	b.until(func() bool { return b.view.Job(name) != nil })
	if _, err := b.hub.Leases.Take(b.t.Context(), hub.Control(name), service.Lease{Worker: "w1", Run: "r1"}); err != nil {
		b.t.Fatal(err)
	}
	b.report(name, service.Report{State: service.Running, Status: &job.Status{Job: name, Phase: job.PhaseFollowing}})
}

// verified has a worker tell the result of a verification, once it is asked for.
func (b *serviceBench) verified(name, id string, r service.VerifyReport, f *service.Findings) {
	b.t.Helper()
	b.until(func() bool { return b.view.Verification(name, id) != nil })
	now := time.Now().UTC()
	r.Run, r.Worker, r.StartedAt, r.EndedAt = "r2", "w1", now, &now
	if f != nil {
		if err := b.hub.Verifications.PutFindings(b.t.Context(), name, id, f); err != nil {
			b.t.Error(err)
		}
	}
	if err := b.hub.Verifications.Report(b.t.Context(), name, id, &r); err != nil {
		b.t.Error(err)
	}
	b.until(func() bool { return !b.view.Verification(name, id).Open() })
}

// TestJobsVerify: the exit codes are those of diff, and texts of documents act on no
// terminal.
func TestJobsVerify(t *testing.T) {
	b := newServiceBench(t)
	b.followingJob("orders")
	found := &service.Findings{Collections: []service.VerifiedCollection{{NS: "shop.c", TargetNS: "shop.c",
		Differences: 1}}, WithValues: true, Schema: []verify.SchemaDifference{},
		Differences: []service.DocumentDifference{{RepairDocument: service.RepairDocument{NS: "shop.c",
			TargetNS: "shop.c", ID: `"a\u001b"` + "\x1b[2J", Kind: "content"},
			Fields: []string{"n\x1b"}, Source: `{"n":"` + "\u202e" + `"}`, Target: `{"n":"<b>"}`}}}
	wait := func(id string, code int, r service.VerifyReport, f *service.Findings, texts ...string) string {
		t.Helper()
		var telling sync.WaitGroup
		telling.Go(func() { b.verified("orders", id, r, f) })
		out := b.expect(code, "jobs verify --job orders --wait --id "+id, texts...)
		telling.Wait()
		return out
	}
	same := &service.Findings{Collections: []service.VerifiedCollection{}, Differences: []service.DocumentDifference{},
		Schema: []verify.SchemaDifference{}}
	wait("clean", cli.ExitOK, service.VerifyReport{State: service.VerifySame}, same, "verification clean: same, by w1")
	out := wait("bad", cli.ExitFailure,
		service.VerifyReport{State: service.VerifyDifferent, Progress: service.VerifyProgress{Differences: 1}}, found,
		"shop.c", "content: shop.c", `target {"n":"<b>"}`, "the clusters differ: 1 document,")
	if strings.ContainsAny(out, "\x1b\u202e") {
		t.Errorf("%q", out)
	}
	b.repairs("orders")
	wait("broken", cli.ExitUsage, service.VerifyReport{State: service.VerifyFailed, Error: "the source is gone",
		Hint: "bring it back"}, nil, "the source is gone", "bring it back")
	b.expect(cli.ExitUsage, "jobs verify --job orders --show --id none", "has no verification")
	b.expect(cli.ExitFailure, "jobs verify --job orders --show --id bad", "content")
	b.expect(cli.ExitUsage, "jobs verify --job orders --show", "verification broken: failed")
	b.expect(cli.ExitUsage, "jobs verify --job none", `there is no job "none"`)
	b.expect(cli.ExitUsage, "jobs verify --job orders --wait --show", "none of the others can be")
	b.expect(cli.ExitUsage, "jobs verify --job orders --sample 200", "200 percent")
	b.expect(cli.ExitUsage, "jobs verify --job orders --include a.b.* --max-rate-bytes lots", "not a number of bytes")
	b.expect(cli.ExitOK, "jobs verify --job orders --id long --sample 5", "is asked for (queued)")
	b.expect(cli.ExitOK, "jobs verify --job orders --id long --sample 5", "was asked for already")
	b.expect(cli.ExitUsage, "jobs verify --job orders --id long", "another verification")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.expectIn(ctx, cli.ExitUsage, "jobs verify --job orders --id long --sample 5 --wait")
	b.expect(cli.ExitOK, "jobs verify --job orders --cancel --id long", "is called off")
	b.expect(cli.ExitUsage, "jobs verify --job orders --id long --sample 5 --wait", "has no result: it is canceled")
	b.expect(cli.ExitOK, "jobs verify --job orders --every 24 --sample 5 --max-rate-bytes 10MB",
		"is verified every 24 hours")
	if s := b.view.Job("orders").Definition.Desired.Verify; s == nil ||
		*s != (service.VerifySchedule{EveryHours: 24, SamplePercent: 5, BytesPerSecond: 10e6}) {
		t.Errorf("%+v", s)
	}
	b.expect(cli.ExitOK, "jobs verify --job orders --every 0", "when it is asked for")
	var v api.Verification
	if err := json.Unmarshal([]byte(b.expect(cli.ExitFailure, "jobs verify --job orders --show --id bad --output json")),
		&v); err != nil || v.Findings == nil || v.Findings.Differences[0].Target != `{"n":"<b>"}` {
		t.Errorf("%+v %v", v, err)
	}
}
