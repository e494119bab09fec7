package oidc

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/yamlfile"
)

// Settings name the provider and its users' roles.
type Settings struct {
	// Issuer is the provider's address.
	Issuer                 string
	ClientID, ClientSecret string
	// URL is the console's.
	URL string
	// Scopes are requested besides openid, email and profile.
	Scopes []string
	// Name is the claim with the name for the audit trail; "" is a verified email, else sub.
	Name string
	// Roles has rules in order; the first match counts.
	Roles []Rule
}

// Rule gives a role to users with a value in a claim.
type Rule struct {
	// Claim has a text or a list of texts.
	Claim, Value string
	Role         service.Role
	Jobs         []string
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

// name ignores an unverified mail address, which may be false.
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

const fileForm = "write issuer, client-id, client-secret, url and roles, as docs/reference/configuration.md shows"

const maxRules = 1000

// Open reads a file; resolve returns its secrets. An error in it is a config.Problems.
func Open(file string, resolve config.Resolver) (s Settings, err error) {
	raw, err := yamlfile.Load("oidc", file)
	if err != nil {
		return s, err
	}
	return parse(file, raw, resolve)
}

func parse(file string, raw []byte, resolve config.Resolver) (s Settings, err error) {
	r := &yamlfile.Reader{File: file, Resolve: resolve}
	err = r.Whole(raw, fileForm, func(all yamlfile.Section) { s = read(all) },
		"issuer", "client-id", "client-secret", "url", "scopes", "name", "roles")
	if err != nil {
		return Settings{}, err
	}
	return s, nil
}

func read(all yamlfile.Section) Settings {
	s := Settings{Issuer: address(all, "issuer"), ClientID: all.Text("client-id"),
		ClientSecret: all.Secret("client-secret"), URL: address(all, "url"),
		Scopes: all.Texts("scopes", "write them as a list"), Name: all.Text("name")}
	if s.ClientID == "" {
		all.Bad("client-id", "is missing", "write the name under which the provider knows the service")
	}
	items := all.Items("roles", "write a list, each of claim, value, role and, if it is for some jobs, jobs")
	if len(items) == 0 || len(items) > maxRules {
		all.Bad("roles", fmt.Sprintf("has %d rules", len(items)),
			fmt.Sprintf("have at least one, and at most %d: whom none fits has no role", maxRules))
	}
	for i, n := range items {
		one, ok := all.Section(n, fmt.Sprintf("roles[%d]", i), "write claim, value, role and, if it is for some jobs, jobs",
			"claim", "value", "role", "jobs")
		if !ok {
			continue
		}
		rule := Rule{Claim: one.Text("claim"), Value: one.Text("value"), Role: service.Role(one.Text("role")),
			Jobs: one.Patterns()}
		for key, value := range map[string]string{"claim": rule.Claim, "value": rule.Value} {
			if value == "" {
				one.Bad(key, "is missing",
					"write which claim of the provider has which value, as in {claim: groups, value: dba, role: admin}")
			}
		}
		if !slices.Contains(service.Roles(), rule.Role) {
			one.Bad("role", fmt.Sprintf("%.40q is not a role", rule.Role), "use viewer, operator or admin")
		}
		s.Roles = append(s.Roles, rule)
	}
	return s
}

// address requires TLS, except on this machine.
func address(s yamlfile.Section, key string) string {
	text := s.Text(key)
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "":
		s.Bad(key, "is missing, or is not an address", "write https://host/path")
	case u.Scheme == "http" && !loopback.Host(u.Host):
		s.Bad(key, "has no TLS", "write https://: who sees the traffic could log in")
	case key == "url" && strings.Trim(u.Path, "/") != "":
		s.Bad(key, "has a path, and the console has none", "write https://host")
	}
	return text
}
