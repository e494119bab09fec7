package precheck

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/users"
)

// accounts checks the users and roles that the job is to copy.
type accounts struct{ *planner }

// users lists them, and those that the target has otherwise.
func (p accounts) users(ctx context.Context) error {
	if !p.Users || p.plan.Checks.Failed() { // perhaps for missing rights, which the check of privileges names
		return nil
	}
	if p.Source.Info.Kind == mongo.KindSharded || p.Target.Info.Kind == mongo.KindSharded {
		p.add(Fail, "users", "leave --users out", "users and roles are copied between replica sets only")
		return nil
	}
	want, have, err := users.Both(ctx, p.Source, p.Target, p.Rules)
	switch {
	case mongo.Classify(err) == mongo.ClassRetry:
		return err
	case err != nil:
		p.add(Fail, "users", mongo.HintOf(err), "%v", err)
		return nil
	}
	own := users.Own{}
	for _, u := range p.job.Users {
		own[u.ID] = append(own[u.ID], u.Sum)
	}
	p.plan.Users = want.Names()
	c := users.Plan(want, have, own)
	put, drop := c.Counts()
	text := fmt.Sprintf("%d users and roles are written, %d removed, %d are there", put, drop,
		len(want)-put-len(c.Foreign))
	if put > 0 {
		text += ": " + c.Text()
	}
	p.ok("users", "%s", text)
	if len(c.Foreign) > 0 {
		var names []string
		for _, d := range c.Foreign {
			names = append(names, d.NS+" ("+d.What+")")
		}
		p.add(Warn, "users", "remove them on the target to get the source's",
			"the target has others of the same names, and keeps them: %s", some(names, ", "))
	}
	return nil
}
