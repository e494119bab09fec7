package mongo

import (
	"strings"
	"testing"
)

func TestCheckURIKeepsSecrets(t *testing.T) {
	for _, uri := range []string{
		"mongodb://user:sec/ret@host", "mongodb://user:sec:ret@host:1", "mongodb://user:secret@host:99999999/",
		"mongodb://user:secret@", "mongodb://user:se%zzcret@h/", "mongodb://user:sec@ret@h/", "mongodb://u:sec?ret@h/",
		"mongodb://u:secret@h/?authMechanism=FOO", "user:secret@host", "",
		"mongodb+srv://",
	} {
		err := CheckURI(uri)
		if err == nil {
			t.Errorf("%s: no error", uri)
			continue
		}
		if HintOf(err) == "" {
			t.Errorf("%s: no hint", uri)
		}
		if text := err.Error() + Redact(uri); strings.Contains(text, "sec") || strings.Contains(text, "ret@") {
			t.Errorf("%s: secret shown in %s", uri, text)
		}
	}
	_, err := ParseURI("mongodb://u:secret@h/?tlsCAFile=/nope")
	if err == nil || strings.Contains(err.Error(), "secret") ||
		!strings.Contains(err.Error(), "/nope") ||
		!strings.Contains(HintOf(err), "tlsCAFile") {
		t.Errorf("a file that is absent: %v", err)
	}
	for _, uri := range []string{
		"mongodb://h:1,h2:2/?replicaSet=x", "mongodb://u:p%40w@h/", "mongodb+srv://u:p@h/",
		"mongodb://h/?tlsCAFile=/nope",
	} {
		if err := CheckURI(uri); err != nil {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

func TestDatabase(t *testing.T) {
	for uri, want := range map[string]string{
		"mongodb://h": "", "mongodb://h/": "", "mongodb://h/?replicaSet=a/b": "", "mongodb://h/shop": "shop",
		"mongodb://u:p@h:1,i:2/my%20shop?w=1": "my shop",
		"mongodb+srv://u:p@h/shop?x=y":        "shop", "": "",
	} {
		if got := Database(uri); got != want {
			t.Errorf("%s: %q", uri, got)
		}
	}
}

func TestHasPassword(t *testing.T) {
	for uri, want := range map[string]bool{
		"mongodb://u:p@h": true, "mongodb://u@h": false, "mongodb://h:1,h2:2/": false, "mongodb+srv://u:p@h/": true,
		"": false,
		"mongodb://h/?tlsCertificateKeyFile=k.pem&tlsCertificateKeyFilePassword=p": true, "mongodb://h/?tls=true": false,
		"mongodb://h/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:t": true,
		"mongodb://h/?proxyHost=p&proxyPassword=x":                                           true,
	} {
		if got := HasPassword(uri); got != want {
			t.Errorf("%s: %v", uri, got)
		}
	}
}

// TestHide: a password is hidden in each form in which a text may have it.
func TestHide(t *testing.T) {
	const uri = "mongodb://ada:geheimnis%20x@h:1/?tls=true"
	for _, text := range []string{uri, "geheimnis x", "geheimnis%20x", "geheimnis+x"} {
		if got := Hide("cannot reach "+text, uri); strings.Contains(got, "geheimnis") ||
			!strings.HasPrefix(got, "cannot reach ") {
			t.Errorf("%s: %s", text, got)
		}
	}
}
