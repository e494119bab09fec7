package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/service/operate"
)

// repairWish is one run of jobs repair: its flags.
type repairWish struct {
	verifyWish

	of   string
	ns   []string
	docs []string
}

func (a *app) jobsRepairCommand() *cobra.Command {
	var r repairWish
	all := false
	cmd := a.remoteJobCommand(&cobra.Command{
		Use:   "repair --server URL --job NAME",
		Short: "Make documents of a job's target as the source has them",
		Long: `Has documents repaired that a verification of the job has found different: those that
the source has are written to the target, those that it has not are deleted there. The
job itself does it while it follows, in order with its changes: a document never becomes
older than it was. Then they are compared again, by a verification of its own.

Choose --all that the verification lists, those of a collection (--ns), or single ones by
their _ids as the list has them (--document). A finalized job repairs nothing.

With --wait it returns when they have been compared. Exit codes, as diff has them: 0 when
none of them differs, 1 when one does, 2 when there is no answer.`,
		Example: `  millrace jobs repair --job orders --all --wait
  millrace jobs repair --job orders --ns shop.orders
  millrace jobs repair --job orders --of nightly --document '{"$oid":"65f0c0ffee65f0c0ffee65f0"}'`,
		Annotations: map[string]string{cli.FailsWith: "trouble"},
	}, &r.remote, func(ctx context.Context) error { return verifyTrouble(a.repairRemote(ctx, &r, all)) })
	fs := cmd.Flags()
	fs.StringVar(&r.ask.ID, "id", "", "`name` of the repair: the same once more asks for no other")
	fs.StringVar(&r.of, "of", "", "`name` of the verification that has found the documents; left out the last that has ended")
	fs.BoolVar(&all, "all", false, "all documents that it lists")
	fs.StringArrayVar(&r.ns, "ns", nil, "documents of this `collection` of the source; may be repeated")
	fs.StringArrayVar(&r.docs, "document", nil, "the document with this `_id`, as the verification shows it; may be repeated")
	fs.BoolVar(&r.wait, "wait", false, "return when the documents have been compared")
	cmd.MarkFlagsOneRequired("all", "ns", "document")
	cmd.MarkFlagsMutuallyExclusive("all", "ns")
	cmd.MarkFlagsMutuallyExclusive("all", "document")
	return cmd
}

func (a *app) repairRemote(ctx context.Context, r *repairWish, all bool) error {
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
		return a.awaitVerified(ctx, &r.verifyWish, got)
	}
	done := "is asked for"
	if !made {
		done = "was asked for already"
	}
	return a.Tell(r.output, got, fmt.Sprintf("%s: the repair of %s %s (verification %s, %s)\n", cli.Plain(r.job), plural(got.Repair.Documents, "document"), done, cli.Plain(got.ID), got.State))
}

// found is the verification whose findings are repaired.
func (r *repairWish) found(ctx context.Context) (of api.Verification, err error) {
	if r.of == "" {
		list, err := r.Verifications(ctx, r.job)
		if err != nil {
			return of, err
		}
		i := slices.IndexFunc(list.Verifications, func(v api.Verification) bool {
			return v.State == service.VerifyDifferent || v.State == service.VerifySame
		})
		if i < 0 {
			return of, mongo.WithHint(fmt.Errorf("job %s has no verification with a result", cli.Plain(r.job)), "millrace jobs verify asks for it")
		}
		r.of = list.Verifications[i].ID
	}
	return r.Verification(ctx, r.job, r.of)
}

// chosen are the documents that --ns and --document name, among those that were found.
func (r *repairWish) chosen(of api.Verification) (docs []operate.RepairDocument, err error) {
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
			return nil, fmt.Errorf("%s, _id %s cannot be named: its _id is too long, or hidden by a rule", cli.Plain(d.NS), cli.Plain(cut(d.ID, 120)))
		}
		docs = append(docs, operate.RepairDocument{NS: d.NS, Key: d.Key})
	}
	for _, id := range r.docs {
		if !used[id] {
			return nil, mongo.WithHint(fmt.Errorf("verification %s lists no document with _id %s", cli.Plain(of.ID), cli.Plain(id)), "millrace jobs verify --show shows them; quote the _id as it is there")
		}
	}
	if len(docs) == 0 {
		return nil, errors.New("verification " + cli.Plain(of.ID) + " lists no document of " + cli.Plain(strings.Join(r.ns, ", ")))
	}
	return docs, nil
}

// repairText is what has come of a repair as text, "" of a verification that is none.
func repairText(v *api.Verification) string {
	if v.Repair == nil {
		return ""
	}
	var b strings.Builder
	p := v.Repair
	fmt.Fprintf(&b, "repair of %s of verification %s: %d written, %d deleted, %d were the same, %d refused\n", plural(p.Documents, "document"), cli.Plain(p.Of), p.Written, p.Deleted, p.Same, p.Refused)
	if v.Findings == nil {
		return b.String()
	}
	for _, d := range v.Findings.Repaired[:min(len(v.Findings.Repaired), maxListed)] {
		fmt.Fprintf(&b, "  %s: %s _id %s%s\n", d.Outcome, cli.Plain(d.NS), cli.Plain(cut(d.ID, 120)), detail(d.Why))
	}
	return b.String()
}
