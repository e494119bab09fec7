package precheck

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/transform"
)

// A rule that matches nothing is told of, with what was perhaps meant.
func TestUnusedRules(t *testing.T) {
	names := []string{"shop.orders", "shop.users", "crm.people"}
	for _, c := range []struct {
		name    string
		rules   transform.Config
		allowed bool
		want    string // level message hint, "" when all is well
	}{
		{"all used", transform.Config{Include: []string{"shop", "crm.p*"}, Exclude: []string{"*.users"},
			Rename: []string{"shop=s", "crm.people=c.d"}}, false, ""},
		{"collection", transform.Config{Include: []string{"shop.orders", "shop.uesrs"}}, false,
			"fail --include shop.uesrs matches nothing on the source did you mean shop.users? --allow-missing accepts what " +
				"is yet to come"},
		{"database", transform.Config{Include: []string{"shpo"}}, false,
			"fail --include shpo.* matches nothing on the source did you mean shop.*? --allow-missing accepts what is yet to " +
				"come"},
		{"wildcard", transform.Config{Include: []string{"shop.order??"}}, false,
			"fail --include shop.order?? matches nothing on the source did you mean shop.orders? --allow-missing accepts " +
				"what is yet to come"},
		{"nothing near", transform.Config{Include: []string{"billing"}}, false,
			"fail --include billing.* matches nothing on the source --allow-missing accepts what is yet to come"},
		{"yet to come", transform.Config{Include: []string{"billing"}}, true,
			"warn --include billing.* matches nothing on the source "},
		{"exclude", transform.Config{Exclude: []string{"shop.user"}}, false,
			"warn --exclude shop.user matches nothing on the source did you mean shop.users?"},
		{"rename of a database", transform.Config{Rename: []string{"crn=x"}}, false,
			"warn --rename crn matches nothing on the source did you mean crm?"},
		{"rename of a collection", transform.Config{Rename: []string{"crm.peopel=crm.x"}}, false,
			"warn --rename crm.peopel matches nothing on the source did you mean crm.people?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules, err := transform.New(c.rules)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, check := range unused(rules.Unused(names), names, c.allowed) {
				got = append(got, string(check.Level)+" "+check.Message+" "+check.Hint)
			}
			if text := strings.Join(got, "\n"); text != c.want {
				t.Errorf("%s\nwant %s", text, c.want)
			}
		})
	}
}

// TestCaseClashes: databases whose names differ in case only cannot be on one target.
func TestCaseClashes(t *testing.T) {
	t.Parallel()
	to := func(names ...string) (out []Collection) {
		for _, ns := range names {
			out = append(out, Collection{Target: ns})
		}
		return out
	}
	for _, c := range []struct {
		name  string
		colls []Collection
		have  []string
		want  string
	}{
		{"none", to("shop.a", "shop.b", "other.a"), []string{"shop", "more"}, ""},
		{"the target's", to("shop.a", "shop.b"), []string{"Shop"}, "the target has the database Shop, and shop is to come"},
		{"by rules", to("shop.a", "Shop.a", "Shop.b"), nil, "the rules lead to the databases shop and Shop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := strings.Join(caseClashes(c.colls, c.have), "\n")
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" || strings.Contains(got, "\n") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
