package lab

import (
	"net/url"
	"strings"
)

// The credentials of the root user. This is no secret: clusters live on the
// loopback interface and hold test data. The characters are those that a
// connection string has to escape, so that every test covers them.
const (
	rootUser     = "root@lab"
	rootPassword = "p@ss:w/rd%"
)

// login is whom a connection logs in as.
type login struct {
	user, password, source, mechanism string
}

// root is the login of the root user.
func root() login { return login{rootUser, rootPassword, "admin", "SCRAM-SHA-256"} }

// parameter is one option of a connection string; they keep their order.
type parameter struct{ key, value string }

// buildURI makes a connection string; the zero login is none.
func buildURI(who login, hosts []string, params []parameter) string {
	var b strings.Builder
	b.WriteString("mongodb://")
	if who.user != "" {
		b.WriteString(escape(who.user) + ":" + escape(who.password) + "@")
	}
	b.WriteString(strings.Join(hosts, ",") + "/")
	if who.mechanism != "" {
		params = append(params, parameter{"authSource", who.source}, parameter{"authMechanism", who.mechanism})
	}
	for i, p := range params {
		b.WriteString(map[bool]string{true: "?", false: "&"}[i == 0])
		b.WriteString(p.key + "=" + escape(p.value))
	}
	return b.String()
}

// escape percent-escapes everything that means something in a URI. A query
// escape writes a space as +, which connection strings do not know.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
