package mongo

import (
	"errors"
	"fmt"
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

// HasPassword reports whether a connection string carries a password, as far
// as its form tells.
func HasPassword(uri string) bool {
	_, rest, _ := strings.Cut(uri, "://")
	at := strings.LastIndex(rest, "@")
	return at > 0 && strings.Contains(rest[:at], ":")
}
