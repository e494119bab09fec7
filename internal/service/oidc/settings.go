package oidc

import (
	"slices"

	"github.com/millrace/millrace/internal/service"
)

// Settings are the provider, and who may do what.
type Settings struct {
	// Issuer is the provider's address, from which its document is read.
	Issuer string
	// ClientID and ClientSecret are those under which the service is known there.
	ClientID, ClientSecret string
	// URL is where people reach the console.
	URL string
	// Scopes are asked for beside openid, email and profile.
	Scopes []string
	// Name is the claim with a name for the audit trail; "" is email, or sub if the provider has not checked that.
	Name string
	// Roles are looked through in order; the first that fits counts.
	Roles []Rule
}

// Rule gives a role to those of whom a claim has a value.
type Rule struct {
	// Claim is a text or a list of them.
	Claim, Value string
	Role         service.Role
	// Jobs are patterns of names; none is all.
	Jobs []string
}

func (r *Rule) fits(claims map[string]any) bool {
	switch v := claims[r.Claim].(type) {
	case string:
		return v == r.Value
	case []any:
		return slices.ContainsFunc(v, func(one any) bool { return one == any(r.Value) })
	}
	return false
}

func (s *Settings) caller(claims map[string]any) *service.Caller {
	for i := range s.Roles {
		if r := &s.Roles[i]; r.fits(claims) {
			return &service.Caller{Name: s.name(claims), Role: r.Role, Jobs: slices.Clone(r.Jobs)}
		}
	}
	return nil
}

const maxName = 100

// name returns the name for the audit trail. A mail address that the provider has not checked may be false.
func (s *Settings) name(claims map[string]any) string {
	text := func(claim string) string {
		v, _ := claims[claim].(string)
		return plain(v)
	}
	name := ""
	switch {
	case s.Name != "":
		name = text(s.Name)
	case claims["email_verified"] == true:
		name = text("email")
	}
	if name == "" {
		name = text("sub")
	}
	return service.Short(name, maxName)
}
