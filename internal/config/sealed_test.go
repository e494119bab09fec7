package config

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
)

// TestSealed: a sealed value is read by processes with the key, for jobs that it was
// sealed for; everything else is told without the value and without the key.
func TestSealed(t *testing.T) {
	const uri = "mongodb://shop:hidden@shop.example/"
	key, recipient, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, _, _ := NewKey()
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	some, err := Seal(recipient+"\n", []string{"shop-*", "bill"}, uri)
	if err != nil {
		t.Fatal(err)
	}
	all, err := Seal(recipient, nil, uri)
	if err != nil {
		t.Fatal(err)
	}
	cut := some[:len(some)-8]
	changed := some[:len(some)-4] + "AAAA"
	for name, c := range map[string]struct {
		key, job, value, fault string
	}{
		"for this job":     {key, "shop-a", some, ""},
		"another pattern":  {key, "bill", some, ""},
		"for all":          {key, "x", all, ""},
		"older keys too":   {other + "\n# a comment\n" + key, "x", all, ""},
		"for other jobs":   {key, "stolen", some, "other names"},
		"another key":      {other, "shop-a", some, "another key"},
		"no key":           {"", "shop-a", some, "no --secrets-key"},
		"a broken key":     {key[:20], "shop-a", some, "holds no key"},
		"cut off":          {key, "shop-a", cut, "cannot read the sealed value"},
		"changed":          {key, "shop-a", changed, "cannot read the sealed value"},
		"no sealed value":  {key, "shop-a", "sealed:bW9uZ29kYg", "secrets seal"},
		"not even encoded": {key, "shop-a", "sealed:mongodb://x", "secrets seal"},
	} {
		w := Work{}
		if c.key != "" {
			w.SecretsKey = file(c.key)
		}
		s, problems := Definition(c.job, "source: '"+c.value+"'\ntarget: mongodb://t.example/\n",
			w.Access(func(string) (string, bool) { return "", false }))
		switch text := problems.Error(); {
		case c.fault == "" && (len(problems) > 0 || s.Source != uri):
			t.Errorf("%s: %q, %s", name, s.Source, text)
		case c.fault != "" && (!strings.Contains(text, c.fault) || !strings.Contains(text, "line 1")):
			t.Errorf("%s: %s", name, text)
		case c.fault != "" &&
			(strings.Contains(text, "hidden") || strings.Contains(text, key[:20]) || strings.Contains(text, some[20:40])):
			t.Errorf("%s: a secret is told: %s", name, text)
		}
	}
	if _, problems := CheckDefinition("shop-a", "source: '"+some+"'\ntarget: env:T\n"); len(problems) > 0 {
		t.Errorf("where the key is not to be had: %s", problems)
	}
	for _, c := range [][2]string{{"age1nobody", uri}, {recipient, ""}} {
		if text, err := Seal(c[0], nil, c[1]); err == nil {
			t.Errorf("%v was sealed as %s", c, text)
		}
	}
	if _, err := Seal(recipient, []string{"[a"}, uri); err == nil {
		t.Error("a pattern that is none")
	}
}

// TestMaskKeys: the key of a mask is what connection strings are: whoever makes a job
// reads no other variable and no other file by it.
func TestMaskKeys(t *testing.T) {
	env := map[string]string{"MILLRACE_SECRET_A": "mongodb://a.example/",
		"MILLRACE_SECRET_KEY": "a key of more than 16 bytes", "OTHER": "another of more than 16 bytes"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	t.Setenv("OTHER", env["OTHER"])
	for ref, ok := range map[string]bool{"env:KEY": true, "env:OTHER": false, "file:/etc/passwd": false} {
		_, problems := Definition("a", "source: env:A\ntarget: mongodb://t.example/\nfields:\n  shop.c: {mask: {mail: "+
			"{hmac: \""+ref+"\"}}}\n", (&Work{}).Access(lookup))
		if (len(problems) == 0) != ok {
			t.Errorf("%s: %s", ref, problems)
		}
	}
}

// TestWildSecrets: nothing of a connection string that cannot be parsed is in the problems
// of a definition, whether it stands there or is referred to.
func TestWildSecrets(t *testing.T) {
	const marker = "qzk"
	rng := rand.New(rand.NewPCG(1, 0))
	for range 400 {
		uri := []string{"mongodb://", "mongodb://", "mongodb+srv://", ""}[rng.IntN(4)] + marker + ":" + marker
		for range 1 + rng.IntN(4) {
			uri += []string{"@", "/", "?", ":", "#", "%zz", "%", "@x/", "/y@", "=", "&", " ", `"`, "'"}[rng.IntN(14)] + marker
		}
		uri += []string{"@127.0.0.1:1/", "@h/db", ""}[rng.IntN(3)]
		if mongo.CheckURI(uri) == nil {
			continue
		}
		access := (&Work{}).Access(func(string) (string, bool) { return "", false })
		access.Secret = func(string, string) (string, error) { return uri, nil }
		for _, text := range []string{"source: " + strconv.Quote(uri) + "\ntarget: env:T\n",
			"source: " + uri + "\ntarget: env:T\n", "source: env:S\ntarget: env:T\n",
			"source: env:S\ntarget: env:T\nsource-shard:\n- s0=" + uri + "\n"} {
			_, problems := Definition("a", text, access)
			said := problems.Error()
			for _, p := range problems {
				said += p.How
			}
			if len(problems) == 0 || strings.Contains(said, marker) {
				t.Fatalf("%q: %q", text, said)
			}
		}
	}
}
