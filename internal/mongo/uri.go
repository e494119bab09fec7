package mongo

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// CheckURI says whether a connection string can be used, without connecting
// and without looking up names: of a mongodb+srv address only the form is
// checked. The error never carries credentials and has a hint.
func CheckURI(uri string) error {
	if rest, ok := strings.CutPrefix(uri, "mongodb+srv://"); ok {
		if rest == "" {
			return WithHint(errors.New("no host"), "write it as mongodb+srv://user:password@host/")
		}
		return nil
	}
	if !strings.HasPrefix(uri, "mongodb://") {
		return WithHint(errors.New("does not start with mongodb:// or mongodb+srv://"),
			"write it as mongodb://user:password@host:port/?replicaSet=name")
	}
	if _, after, ok := strings.Cut(uri, "?"); ok && strings.Contains(after, "@") {
		return WithHint(errors.New("has an @ after a question mark"), "percent-encode special characters of the password: ? is %3F, / is %2F, @ is %40")
	}
	_, err := parseURI(uri)
	return err
}

func parseURI(uri string) (*options.ClientOptions, error) {
	opts := options.Client().ApplyURI(uri)
	if err := opts.Validate(); err != nil {
		return nil, WithHint(fmt.Errorf("connection string %s: %w", Redact(uri), scrub(err, uri)),
			"write it as mongodb://user:password@host:port/?replicaSet=name; percent-encode special characters of the password")
	}
	return opts, nil
}

// Database is the one that a connection string names in its path, "" without. It is
// where the user is looked for, and restricts nothing.
func Database(uri string) string {
	_, rest, _ := strings.Cut(uri, "://")
	rest, _, _ = strings.Cut(rest, "?")
	_, db, _ := strings.Cut(rest[strings.LastIndex(rest, "@")+1:], "/")
	if name, err := url.PathUnescape(db); err == nil {
		return name
	}
	return db
}

// HasPassword reports whether a connection string carries a password, as far
// as its form tells: of the user, of a key's file or of a proxy, or a session's token.
func HasPassword(uri string) bool {
	_, rest, _ := strings.Cut(uri, "://")
	at := strings.LastIndex(rest, "@")
	_, query, _ := strings.Cut(strings.ToLower(rest), "?")
	return at > 0 && strings.Contains(rest[:at], ":") || strings.Contains(query, "password=") || strings.Contains(query, "_token:")
}

// MemberURI is a connection string for another replica set of the same cluster: that
// of a router with the hosts "set/host:port,host:port" in place of its own. User,
// password and all options stay; srv is what a mongodb+srv string stands for: TLS, unless
// it says otherwise, and no name to look up.
func MemberURI(router, hosts string) (string, error) {
	set, list, ok := strings.Cut(hosts, "/")
	scheme, rest, isURI := strings.Cut(router, "://")
	if !ok || !isURI || set == "" || list == "" {
		return "", fmt.Errorf("%q are no hosts of a replica set; want set/host:port,host:port", hosts)
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	login := rest[:strings.LastIndex(rest[:end], "@")+1]
	path, query, _ := strings.Cut(rest[end:], "?")
	if path == "" {
		path = "/"
	}
	params := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		name, _, _ := strings.Cut(strings.ToLower(p), "=")
		return slices.Contains([]string{"", "replicaset", "directconnection", "loadbalanced", "srvmaxhosts", "srvservicename"}, name)
	})
	lower := strings.ToLower(query)
	if scheme == "mongodb+srv" && !strings.Contains(lower, "tls=") && !strings.Contains(lower, "ssl=") {
		params = append(params, "tls=true")
	}
	params = append(params, "replicaSet="+url.QueryEscape(set))
	return "mongodb://" + login + list + path + "?" + strings.Join(params, "&"), nil
}
