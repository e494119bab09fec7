package mongo

import (
	"errors"
	"fmt"
	"net/url"
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
