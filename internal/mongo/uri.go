package mongo

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// CheckURI checks the form of a connection string. It looks up no names and opens no files: serve only passes them
// on. Of a mongodb+srv address only the parts are checked. The error quotes nothing of uri and has a hint.
func CheckURI(uri string) error {
	a, err := splitURI(uri)
	if err != nil || a.scheme == srvScheme {
		return err
	}
	bare, err := ReplaceFiles(uri, func(string, string) (string, error) { return "", nil })
	if err == nil {
		_, err = ParseURI(bare)
	}
	return err
}

// ReplaceFiles replaces each file that a connection string names, in options for TLS, by the one that with returns.
// An empty name drops the option.
func ReplaceFiles(uri string, with func(option, file string) (string, error)) (string, error) {
	before, query, found := strings.Cut(uri, "?")
	if !found {
		return uri, nil
	}
	options := optionsOf(query)
	kept := options[:0]
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		name, err := url.QueryUnescape(key)
		file, bad := url.QueryUnescape(value)
		if err != nil || bad != nil || !slices.Contains(fileOptions(), strings.ToLower(name)) {
			kept = append(kept, option)
			continue
		}
		if file, err = with(name, file); err != nil {
			return "", err
		}
		if file != "" {
			kept = append(kept, key+"="+url.QueryEscape(file))
		}
	}
	return before + "?" + strings.Join(kept, "&"), nil
}

// UsesMachine reports whether a connection string logs in with the identity of the machine, in Kubernetes or a cloud.
// The driver then sends a token of the machine to the hosts.
func UsesMachine(uri string) bool {
	_, query, _ := strings.Cut(uri, "?")
	return slices.ContainsFunc(optionsOf(query), func(option string) bool {
		key, value, _ := strings.Cut(option, "=")
		name, err := url.QueryUnescape(key)
		mechanism, bad := url.QueryUnescape(value)
		return err == nil && bad == nil && strings.EqualFold(name, "authMechanism") &&
			(strings.EqualFold(mechanism, "MONGODB-OIDC") || strings.EqualFold(mechanism, "MONGODB-AWS"))
	})
}

// HasSocket reports whether a connection string names a Unix socket in place of a host.
func HasSocket(uri string) bool {
	a, err := splitURI(uri)
	hosts, bad := url.PathUnescape(a.hosts)
	return err == nil && bad == nil && strings.Contains(hosts, "/")
}

// optionsOf splits a query as the driver does, which takes both separators.
func optionsOf(query string) []string {
	return strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' })
}

// fileOptions returns the options of a connection string that name files, in lower case.
func fileOptions() []string {
	return []string{"tlscafile", "sslcertificateauthorityfile", "tlscertificatekeyfile", "sslclientcertificatekeyfile",
		"tlscertificatefile", "tlsprivatekeyfile"}
}

// ParseURI reads a connection string; of a mongodb+srv address it looks up the hosts. All
// connection strings are read by it, for the driver's errors quote what it cannot read:
// the error of ParseURI quotes nothing of the connection string and has a hint.
func ParseURI(uri string) (*options.ClientOptions, error) {
	if _, err := splitURI(uri); err != nil {
		return nil, err
	}
	opts := options.Client().ApplyURI(uri)
	var file *fs.PathError
	var name *net.DNSError
	switch err := opts.Validate(); {
	case errors.As(err, &file):
		return nil, WithHint(fmt.Errorf("cannot read a file that the connection string names: %w", file),
			"check tlsCAFile and tlsCertificateKeyFile")
	case errors.As(err, &name):
		return nil, WithHint(fmt.Errorf("cannot look up the hosts of the connection string: %w", name),
			"check the host name after mongodb+srv://, and the DNS of this machine")
	case err != nil:
		return nil, WithHint(fmt.Errorf("the connection string cannot be parsed: %s", reason(err)), uriHint)
	}
	return opts, nil
}

const (
	plainScheme = "mongodb"
	srvScheme   = "mongodb+srv"
	uriHint     = "write it as mongodb://user:password@host:port/?replicaSet=name; percent-encode special characters " +
		"of the password: @ is %40, / is %2F, : is %3A, ? is %3F, % is %25"
)

// reason is the driver's text where that quotes nothing but the names of options.
func reason(err error) string {
	text := err.Error()
	if _, option, ok := strings.Cut(text, `invalid value for "`); ok {
		if option, _, _ = strings.Cut(option, `"`); !strings.ContainsFunc(option,
			func(r rune) bool { return r < 'a' || r > 'z' }) {
			return "invalid value of the option " + option
		}
	}
	for _, known := range []string{
		"must have at least 1 host", "must have a / before the query ?", "invalid auth mechanism", "invalid option",
		"invalid authMechanism property",
		"auth source must be $external", "authSource must be non-empty", "invalid 'connect' value",
		"invalid 'directConnection' value", "username required", "password required",
		"must have at least 1 compressor", "direct connection cannot be made if multiple hosts are specified",
		"direct connection cannot be made if an SRV URI is used",
		"cannot specify srvMaxHosts on non-SRV URI", "cannot specify srvServiceName on non-SRV URI",
		"tls and ssl options, when both specified, must be equivalent",
		"w=0 and j=true",
	} {
		if strings.Contains(text, known) {
			return known
		}
	}
	return "it has another form"
}

type address struct {
	scheme, login, hosts string
	path                 string // after the first slash, without options
}

// splitURI cuts a connection string. It refuses one that could be cut in other ways, as with unencoded characters
// of a password, and one without hosts. The error quotes nothing of it and has a hint.
func splitURI(uri string) (a address, err error) {
	failed := func(why string) (address, error) { return address{}, WithHint(errors.New(why), uriHint) }
	scheme, rest, _ := strings.Cut(uri, "://")
	if scheme != plainScheme && scheme != srvScheme {
		return failed("does not start with mongodb:// or mongodb+srv://")
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	if strings.Contains(rest[end:], "@") {
		return failed("has an @ after a slash or a question mark")
	}
	a = address{scheme: scheme, hosts: rest[:end]}
	if at := strings.LastIndex(a.hosts, "@"); at >= 0 {
		a.login, a.hosts = a.hosts[:at], a.hosts[at+1:]
	}
	_, bad := url.PathUnescape(a.login)
	switch {
	case strings.Contains(a.login, "@"):
		return failed("has more than one @")
	case strings.Count(a.login, ":") > 1:
		return failed("has more than one colon before the @")
	case bad != nil:
		return failed("has a % before the @ that encodes nothing")
	case !areHosts(scheme, a.hosts):
		return failed("has no host, or one that cannot be a host")
	}
	a.path, _, _ = strings.Cut(rest[end:], "?")
	a.path = strings.TrimPrefix(a.path, "/")
	return a, nil
}

// areHosts reports a valid list of hosts. Like the driver it ignores superfluous commas.
func areHosts(scheme, list string) bool {
	hosts := strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
	for _, host := range hosts {
		name, port, hasPort := host, "", false
		if i := strings.LastIndex(host, ":"); i > strings.LastIndex(host, "]") {
			name, port, hasPort = host[:i], host[i+1:], true
		}
		number, err := strconv.ParseUint(port, 10, 16)
		if name == "" || hasPort && (err != nil || number == 0 || scheme == srvScheme) {
			return false
		}
		inner, bracketed := strings.CutPrefix(name, "[")
		if bracketed {
			inner, bracketed = strings.CutSuffix(inner, "]")
			if !bracketed {
				return false
			}
		}
		foreign := func(r rune) bool {
			return r < 0x80 && !strings.ContainsRune("._-~%", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') &&
				(r < 'A' || r > 'Z') && (r != ':' || !bracketed)
		}
		if _, err := url.PathUnescape(name); err != nil || strings.ContainsFunc(inner, foreign) {
			return false
		}
	}
	return len(hosts) == 1 || len(hosts) > 1 && scheme != srvScheme
}

// Database returns the database that a connection string names, where the user is looked for; "" without.
func Database(uri string) string {
	a, err := splitURI(uri)
	if err != nil {
		return ""
	}
	if name, err := url.PathUnescape(a.path); err == nil {
		return name
	}
	return a.path
}

// HasPassword reports whether a connection string has a password, of the user, a key file or a proxy, or a
// session's token.
func HasPassword(uri string) bool {
	_, rest, _ := strings.Cut(uri, "://")
	at := strings.LastIndex(rest, "@")
	_, query, _ := strings.Cut(strings.ToLower(rest), "?")
	return at > 0 && strings.Contains(rest[:at], ":") || strings.Contains(query, "password=") ||
		strings.Contains(query, "_token:")
}

// MemberURI returns the connection string of a cluster's replica set: that of a router with hosts
// "set/host:port,host:port" in place of its own. User, password and options stay. For mongodb+srv it adds TLS
// unless an option says otherwise.
func MemberURI(router, hosts string) (string, error) {
	set, list, ok := strings.Cut(hosts, "/")
	a, err := splitURI(router)
	if !ok || err != nil || set == "" || list == "" {
		return "", fmt.Errorf("%q are not the hosts of a replica set; want set/host:port,host:port", hosts)
	}
	if a.login != "" {
		a.login += "@"
	}
	_, query, _ := strings.Cut(router, "?")
	params := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		name, _, _ := strings.Cut(strings.ToLower(p), "=")
		return slices.Contains([]string{"", "replicaset", "directconnection", "loadbalanced", "srvmaxhosts",
			"srvservicename"}, name)
	})
	lower := strings.ToLower(query)
	if a.scheme == srvScheme && !strings.Contains(lower, "tls=") && !strings.Contains(lower, "ssl=") {
		params = append(params, "tls=true")
	}
	params = append(params, "replicaSet="+url.QueryEscape(set))
	return "mongodb://" + a.login + list + "/" + a.path + "?" + strings.Join(params, "&"), nil
}

// Redact removes user, password and options from a connection string.
func Redact(uri string) string {
	a, err := splitURI(uri)
	if err != nil {
		return "(address not shown)" // any part may be one of the password
	}
	return a.scheme + "://" + a.hosts
}

// scrub removes the connection string and its password from an error, as the driver quotes parts of it.
func scrub(err error, uri string) error {
	text := Hide(err.Error(), uri)
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}

// Hide removes a connection string and its password from a text.
func Hide(text, uri string) string {
	text = strings.ReplaceAll(text, uri, Redact(uri))
	a, err := splitURI(uri)
	if err != nil {
		return text
	}
	_, written, _ := strings.Cut(a.login, ":")
	const shortest = 3 // bytes: shorter ones are parts of many words
	plain, err := url.PathUnescape(written)
	if err != nil || len(plain) < shortest {
		return text
	}
	quoted := strconv.Quote(plain)
	for _, form := range []string{written, plain, url.QueryEscape(plain), url.PathEscape(plain),
		quoted[1 : len(quoted)-1]} {
		text = strings.ReplaceAll(text, form, "***")
	}
	return text
}
