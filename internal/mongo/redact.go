package mongo

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
)

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
