package operate

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/service"
)

// TestReverse: a finalized job is reversed once, with its rules inverted; what would be lost
// refuses until it is accepted by name. The reversed job leads there again.
func TestReverse(t *testing.T) {
	r := start(t)
	ctx, admin := t.Context(), caller(service.Admin)
	settings := "source: env:OLD\ntarget: env:NEW\nrename: {shop: store}\nwrite-concern: 2\nuntil: caught-up\n" +
		"shard: [shop.orders=none]\nfilter: {shop.orders: {open: true}}\n"
	_, _, err := r.Create(ctx, admin, service.Definition{Name: "shop", Settings: settings})
	r.must(err)
	_, _, err = r.Reverse(ctx, admin, "shop", Reverse{})
	refusedAs(t, err, Conflict, "before its cut-over")
	if e := r.trail(); e.What != "reverse" || e.Refused == "" {
		t.Errorf("%+v", e)
	}
	r.stands(r.View.Job("shop").Definition, service.Report{State: service.Finished})
	_, _, err = r.Reverse(ctx, caller(service.Operator), "shop", Reverse{})
	refusedAs(t, err, Forbidden, "operator")
	_, _, err = r.Reverse(ctx, admin, "shop", Reverse{AcceptLoss: []string{"all"}})
	refusedAs(t, err, Invalid, "is not a loss")
	_, _, err = r.Reverse(ctx, admin, "shop", Reverse{})
	refusedAs(t, err, Conflict, "--filter shop.orders")

	r.answers("w1", func(q service.Question) service.Answer {
		if q.What != service.AskPrecheck || q.Job != "shop-back" {
			t.Errorf("%+v", q)
		}
		return body(service.DraftPlan{Worker: "w1"})
	})
	r.worker(service.Worker{Name: "w1"})
	dry, made, err := r.Reverse(ctx, admin, "shop", Reverse{DryRun: true})
	if err != nil || made || dry.Plan == nil || dry.Job != nil || len(dry.Losses) != 1 || dry.Losses[0].Accepted {
		t.Fatalf("%+v %v %v", dry, made, err)
	}
	ask := Reverse{AcceptLoss: []string{"filter"}}
	back, made, err := r.Reverse(ctx, admin, "shop", ask)
	want := `source: "env:NEW"
target: "env:OLD"
write-concern: "2"
mode: "incremental"
start-at: "job:shop"
exclude:
  - "shop.*"
rename:
  - "store=shop"
allow-missing: "true"
accept-loss:
  - "filter"
`
	if err != nil || !made || back.Name != "shop-back" || back.Job.Definition.Settings != want {
		t.Fatalf("%v %v\n%s", made, err, back.Settings)
	}
	if _, made, err = r.Reverse(ctx, admin, "shop", ask); err != nil || made {
		t.Errorf("once more: %v %v", made, err)
	}

	r.until(func() bool { return r.View.Job("shop-back") != nil })
	r.stands(r.View.Job("shop-back").Definition, service.Report{State: service.Finished})
	again, made, err := r.Reverse(ctx, admin, "shop-back", Reverse{})
	if err != nil || !made || again.Name != "shop-back2" || !strings.Contains(again.Settings, `"shop=store"`) ||
		!strings.Contains(again.Settings, `{\"open\":true}`) || len(again.Losses) != 0 {
		t.Errorf("%v %v\n%s", made, err, again.Settings)
	}
}
