package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cli"
)

// TestSecrets: the key that is made reads what is sealed for it, and is not written over.
func TestSecrets(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	run := func(in string, args ...string) (string, int) {
		var out bytes.Buffer
		a := newApp()
		a.Stdout, a.Stderr = &out, &out
		stdin := filepath.Join(t.TempDir(), "in")
		if err := os.WriteFile(stdin, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(stdin)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		a.Stdin = f
		code := a.run(t.Context(), args)
		return strings.TrimSpace(out.String()), code
	}
	recipient, code := run("", "secrets", "keygen", "--out", key)
	if code != 0 || !strings.HasPrefix(recipient, "age1") {
		t.Fatalf("%d %s", code, recipient)
	}
	raw, err := os.ReadFile(key)
	if err != nil || !strings.Contains(string(raw), "AGE-SECRET-KEY-") {
		t.Fatalf("the key's file has %q: %v", raw, err)
	}
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if text, code := run("", "secrets", "keygen", "--out", key); code != cli.ExitUsage {
		t.Errorf("written over: %d %s", code, text)
	}
	if text, code := run("mongodb://u:p@h/\n", "secrets", "seal", "--recipient", recipient, "--job",
		"shop-*"); code != 0 || !strings.HasPrefix(text, "sealed:") {
		t.Errorf("%d %s", code, text)
	}
	for what, args := range map[string][]string{"no recipient": {"secrets", "seal"}, "no file": {"secrets", "keygen"},
		"a wrong pattern": {"secrets", "seal", "--recipient", recipient, "--job", "["}} {
		if text, code := run("mongodb://u:p@h/", args...); code != cli.ExitUsage || strings.Contains(text, "u:p@h") {
			t.Errorf("%s: %d %s", what, code, text)
		}
	}
}
