package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/service/operate"
)

type verifyRequest struct {
	remote

	ask    api.NewVerification
	rate   string
	every  int
	wait   bool
	cancel bool
	show   bool
}

func jobsVerifyCommand(a *app) *cobra.Command {
	v := verifyRequest{remote: remote{app: a}}
	cmd := a.described("jobs verify", &cobra.Command{Annotations: map[string]string{cli.FailsWith: "trouble"}}, v.vars(),
		config.Vars{"sample": &v.ask.SamplePercent, "include": &v.ask.Include, "recheck-for": &v.ask.PatienceSeconds,
			"max-rate-bytes": &v.rate, "no-values": &v.ask.NoValues, "every": &v.every, "cancel": &v.cancel, "show": &v.show})
	v.jobCommand(cmd, func(ctx context.Context) error {
		rate, err := humanize.ParseBytes(v.rate)
		if err != nil || rate > 1<<62 {
			return cli.WithCode(cli.ExitUsage, fmt.Errorf("--max-rate-bytes: %q is not a number of bytes", cli.Plain(v.rate)))
		}
		v.ask.BytesPerSecond = int64(rate)
		return v.request(ctx, cmd.Flags().Changed("every"))
	})
	cmd.MarkFlagsMutuallyExclusive("wait", "cancel", "show", "every")
	return cmd
}

func (v *verifyRequest) vars() config.Vars { return config.Vars{"id": &v.ask.ID, "wait": &v.wait} }

func (v *verifyRequest) request(ctx context.Context, every bool) error {
	switch {
	case every:
		return v.schedule(ctx)
	case v.show || v.cancel:
		return v.old(ctx)
	}
	got, made, err := v.Verify(ctx, v.job, v.ask)
	if err != nil {
		return err
	}
	if !v.wait {
		return v.Tell(v.output, got, fmt.Sprintf("%s: verification %s %s (%s)\n", cli.Plain(v.job), cli.Plain(got.ID),
			requested(made, "is asked for", "was asked for already"), got.State))
	}
	return v.await(ctx, got)
}

func (v *verifyRequest) schedule(ctx context.Context) error {
	method, s := http.MethodDelete, any(nil)
	done := "is verified when it is asked for"
	if v.every != 0 {
		method, s = http.MethodPut, service.VerifySchedule{EveryHours: v.every, SamplePercent: v.ask.SamplePercent,
			BytesPerSecond: v.ask.BytesPerSecond, NoValues: v.ask.NoValues}
		done = fmt.Sprintf("is verified every %s", plural(v.every, "hour"))
	}
	j, err := api.Ask[api.Job](ctx, v.Client, method, api.At(api.PathVerifySchedule, v.job), s)
	return then(err, func() error { return v.tellDone(&j, done) })
}

func (v *verifyRequest) old(ctx context.Context) error {
	id := v.ask.ID
	if id == "" {
		list, err := v.verifications(ctx)
		if err != nil {
			return err
		}
		if len(list.Verifications) == 0 {
			return mongo.WithHint(fmt.Errorf("job %s was not verified", cli.Plain(v.job)), "millrace jobs verify asks for it")
		}
		id = list.Verifications[0].ID
	}
	if v.cancel {
		got, err := v.verification(ctx, http.MethodDelete, id)
		return then(err, func() error {
			return v.Tell(v.output, got, fmt.Sprintf("%s: verification %s is called off\n", cli.Plain(v.job), cli.Plain(got.ID)))
		})
	}
	got, err := v.verification(ctx, http.MethodGet, id)
	return then(err, func() error { return v.verified(&got) })
}

func (v *verifyRequest) verifications(ctx context.Context) (api.Verifications, error) {
	return api.Ask[api.Verifications](ctx, v.Client, http.MethodGet, api.At(api.PathVerifications, v.job), nil)
}

func (v *verifyRequest) verification(ctx context.Context, method, id string) (api.Verification, error) {
	return api.Ask[api.Verification](ctx, v.Client, method, api.At(api.PathVerification, v.job, id), nil)
}

func (v *verifyRequest) await(ctx context.Context, got api.Verification) error {
	looked := false // what was asked for has no findings
	now, err := await(ctx, got, func(now api.Verification) (bool, error) { return looked && now.State.Final(), nil },
		func() (api.Verification, error) {
			looked = true
			return v.verification(ctx, http.MethodGet, got.ID)
		})
	if ctx.Err() != nil && err != nil {
		return mongo.WithHint(fmt.Errorf("%w; the verification continues", context.Cause(ctx)),
			"millrace jobs verify --show shows it, --cancel cancels it")
	}
	return then(err, func() error { return v.verified(&now) })
}

func (v *verifyRequest) verified(got *api.Verification) error {
	if err := v.Tell(v.output, got, verificationText(v.job, got)); err != nil {
		return err
	}
	switch got.State {
	case service.VerifySame:
		return nil
	case service.VerifyDifferent:
		return cli.WithCode(cli.ExitFailure, fmt.Errorf("the clusters differ: %s, %s of collections, indexes or options",
			plural(int(got.Differences), "document"), plural(int(got.SchemaDifferences), "difference")))
	case service.VerifyFailed:
		return mongo.WithHint(errors.New(cli.Plain(got.Error)), cli.Plain(got.Hint))
	}
	return fmt.Errorf("verification %s has no result: it is %s", cli.Plain(got.ID), got.State)
}

func verificationText(job string, v *api.Verification) string {
	return textOf("verification", struct {
		Of string
		*api.Verification
	}{job, v})
}

type repairRequest struct {
	verifyRequest

	of   string
	ns   []string
	docs []string
}

func jobsRepairCommand(a *app) *cobra.Command {
	r := repairRequest{verifyRequest: verifyRequest{remote: remote{app: a}}}
	all := false
	cmd := r.jobCommand(a.described("jobs repair",
		&cobra.Command{Annotations: map[string]string{cli.FailsWith: "trouble"}}, r.vars(),
		config.Vars{"of": &r.of, "all": &all, "ns": &r.ns, "document": &r.docs}),
		func(ctx context.Context) error { return r.request(ctx, all) })
	cmd.MarkFlagsOneRequired("all", "ns", "document")
	cmd.MarkFlagsMutuallyExclusive("all", "ns")
	cmd.MarkFlagsMutuallyExclusive("all", "document")
	return cmd
}

func (r *repairRequest) request(ctx context.Context, all bool) error {
	of, err := r.found(ctx)
	if err != nil {
		return err
	}
	what := operate.RepairWhat{All: all}
	if !all {
		if what.Documents, err = r.chosen(of); err != nil {
			return err
		}
	}
	got, made, err := r.Repair(ctx, r.job, of.ID, api.NewRepair{ID: r.ask.ID, RepairWhat: what})
	if err != nil {
		return err
	}
	if r.wait {
		return r.await(ctx, got)
	}
	return r.Tell(r.output, got, fmt.Sprintf("%s: the repair of %s %s (verification %s, %s)\n",
		cli.Plain(r.job), plural(got.Repair.Documents, "document"),
		requested(made, "is asked for", "was asked for already"), cli.Plain(got.ID), got.State))
}

func (r *repairRequest) found(ctx context.Context) (of api.Verification, err error) {
	if r.of == "" {
		list, err := r.verifications(ctx)
		if err != nil {
			return of, err
		}
		i := slices.IndexFunc(list.Verifications, func(v api.Verification) bool {
			return v.State == service.VerifyDifferent || v.State == service.VerifySame
		})
		if i < 0 {
			return of, mongo.WithHint(fmt.Errorf("job %s has no verification with a result", cli.Plain(r.job)),
				"millrace jobs verify asks for it")
		}
		r.of = list.Verifications[i].ID
	}
	return r.verification(ctx, http.MethodGet, r.of)
}

// chosen are the documents that --ns and --document name, among those that were found.
func (r *repairRequest) chosen(of api.Verification) (docs []operate.RepairDocument, err error) {
	if of.Findings == nil {
		return nil, fmt.Errorf("verification %s has found nothing", cli.Plain(of.ID))
	}
	used := map[string]bool{}
	for _, d := range of.Findings.Differences {
		inNS := len(r.ns) == 0 || slices.Contains(r.ns, d.NS)
		named := len(r.docs) == 0 || slices.Contains(r.docs, d.ID)
		if !inNS || !named {
			continue
		}
		if used[d.ID] = true; d.Key == "" {
			return nil, fmt.Errorf("%s, _id %s cannot be named: its _id is too long, or hidden by a rule", cli.Plain(d.NS),
				cli.Plain(cut(d.ID, 120)))
		}
		docs = append(docs, operate.RepairDocument{NS: d.NS, Key: d.Key})
	}
	for _, id := range r.docs {
		if !used[id] {
			return nil, mongo.WithHint(fmt.Errorf("verification %s lists no document with _id %s", cli.Plain(of.ID),
				cli.Plain(id)), "millrace jobs verify --show shows them; quote the _id as it is there")
		}
	}
	if len(docs) == 0 {
		return nil, errors.New("verification " + cli.Plain(of.ID) + " lists no document of " +
			cli.Plain(strings.Join(r.ns, ", ")))
	}
	return docs, nil
}
