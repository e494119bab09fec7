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

// parameter is one option of a connection string; they keep their order.
type parameter struct{ key, value string }

// buildURI makes a connection string; user may be empty.
func buildURI(user, password string, hosts []string, params []parameter) string {
	var b strings.Builder
	b.WriteString("mongodb://")
	if user != "" {
		b.WriteString(escape(user) + ":" + escape(password) + "@")
	}
	b.WriteString(strings.Join(hosts, ",") + "/")
	for i, p := range params {
		b.WriteString(map[bool]string{true: "?", false: "&"}[i == 0])
		b.WriteString(p.key + "=" + escape(p.value))
	}
	return b.String()
}

// escape percent-escapes everything that means something in a URI. A query
// escape writes a space as +, which connection strings do not know.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
