package oidc

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/service"
)

const goodFile = `issuer: https://login.example/realms/main
client-id: millrace
client-secret: env:OIDC
url: https://millrace.example
scopes: [groups]
name: preferred_username
roles:
  - {claim: groups, value: dba, role: admin}
  - {claim: groups, value: shop, role: operator, jobs: [shop-*]}
`

// TestFile: a file says what the documentation says; each mistake is told with its line,
// and no secret.
func TestFile(t *testing.T) {
	resolve := func(_, ref string) (string, error) {
		if ref != "env:OIDC" {
			return "", errors.New("it is not there")
		}
		return "the secret", nil
	}
	s, err := parse("f", []byte(goodFile), resolve)
	want := Settings{Issuer: "https://login.example/realms/main", ClientID: "millrace", ClientSecret: "the secret",
		URL: "https://millrace.example", Scopes: []string{"groups"}, Name: "preferred_username",
		Roles: []Rule{{Claim: "groups", Value: "dba", Role: service.Admin},
			{Claim: "groups", Value: "shop", Role: service.Operator, Jobs: []string{"shop-*"}}}}
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, %v", s, err)
	}
	for _, c := range [][3]string{
		{"issuer: https", "issuer: http", "line 1"},
		{"url: https://millrace.example", "url: https://millrace.example/console", "line 4"},
		{"env:OIDC", "plainsecret", "line 3"},
		{"env:OIDC", "env:OTHER", "line 3"}, {"role: admin", "role: root", "line 8"},
		{"claim: groups, value: dba", "claim: groups", "line 8"}, {"[shop-*]", "['[']", "line 9"},
		{"client-id: millrace", "client-idd: millrace", "did you mean client-id?"},
		{"roles:", "roles: []\nother:", "has 0 rules"}, {"issuer", "  issuer", "not"},
	} {
		_, err := parse("f", []byte(strings.Replace(goodFile, c[0], c[1], 1)), resolve)
		if err == nil || !strings.Contains(err.Error(), c[2]) || strings.Contains(err.Error(), "plainsecret") {
			t.Errorf("%s: %v", c[1], err)
		}
	}
}
