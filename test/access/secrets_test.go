package access

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/workshop/lab"
)

// secret is a password in all the spellings in which it could show up.
const secret = "hidden/p@ss:wörd%25 #1"

func spellings() []string {
	quoted, _ := json.Marshal(secret)
	return []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret), strings.ReplaceAll(url.QueryEscape(secret), "+", "%20"),
		strings.Trim(string(quoted), `"`), "hidden",
	}
}

// secretive are users with that password on both sides.
func secretive(t *testing.T) (source, target string) {
	t.Helper()
	who := account{"secretive", secret}
	for _, s := range []side{sourceSide(), targetSide()} {
		_ = s.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "dropUser", Value: who.name}}).Err()
		s.admin(t, bson.D{{Key: "createUser", Value: who.name}, {Key: "pwd", Value: who.password},
			{Key: "roles", Value: bson.A{"root"}}})
	}
	return who.uri(shared.source), who.uri(shared.target)
}

// silent wants no spelling of the secret in a text.
func silent(t *testing.T, where, text string) {
	t.Helper()
	for _, s := range spellings() {
		if at := strings.Index(text, s); at >= 0 {
			t.Errorf("%s shows the password: …%s…", where, text[max(0, at-80):min(len(text), at+80)])
			return
		}
	}
}

// TestSecretsOfAJob runs the program with passwords in the environment and
// looks for them wherever it writes.
func TestSecretsOfAJob(t *testing.T) {
	load(t)
	source, target := secretive(t)
	t.Setenv("MILLRACE_SOURCE", source)
	t.Setenv("MILLRACE_TARGET", target)
	t.Setenv("MILLRACE_TOKEN", "0123456789abcdef")
	bin := test.BuildMillrace(t)
	dir := t.TempDir()
	report := filepath.Join(dir, "report.json")
	args := []string{"--include", "acc*", "--exclude", "acc.out*", "--log-level", "debug"}

	p := test.Start(t, bin, append([]string{"sync", "--job", "secret", "--report", report}, args...)...)
	p.AwaitPhase(shared.targetDB, "secret", "following")
	control := regexp.MustCompile(`control=(\S+)`).FindStringSubmatch(p.Output())
	if control == nil {
		t.Fatalf("sync does not tell its control address:\n%s", p.Output())
	}
	silent(t, "status", output(t, bin, "status", "--address", control[1], "--output", "json"))
	silent(t, "finalize", output(t, bin, "finalize", "--address", control[1]))
	if err := p.Wait(5 * time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	silent(t, "sync's output", p.Output())
	silent(t, "verify's output",
		output(t, bin, append([]string{"verify", "--report", filepath.Join(dir, "verify.json")}, args...)...))
	silent(t, "the plan", output(t, bin, append([]string{"sync", "--dry-run", "--job", "other"}, args...)...))
	filesSilent(t, dir)
	checkpointSilent(t)
}

// output runs the program and returns all it prints.
func output(t *testing.T, bin string, args ...string) string {
	t.Helper()
	p := test.Start(t, bin, args...)
	if err := p.Wait(3 * time.Minute); err != nil {
		t.Logf("%s: %v", args[0], err)
	}
	if p.Output() == "" {
		t.Errorf("%s prints nothing", args[0])
	}
	return p.Output()
}

func filesSilent(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		silent(t, path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkpointSilent looks through everything that is kept on the target.
func checkpointSilent(t *testing.T) {
	t.Helper()
	db := shared.targetDB.Database("millrace")
	names, err := db.ListCollectionNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Error("there is no checkpoint")
	}
	for _, name := range names {
		cur, err := db.Collection(name).Find(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		for cur.Next(t.Context()) {
			silent(t, "millrace."+name, string(cur.Current)+cur.Current.String())
		}
		if err := cur.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSecretsInErrors makes connections fail in every way and looks for the
// password in what is printed.
func TestSecretsInErrors(t *testing.T) {
	source, target := secretive(t)
	bin := test.BuildMillrace(t)
	wrong := account{"nobody", secret}
	closed := closedPort(t)
	_, rest, _ := strings.Cut(source, "@")
	for what, uri := range map[string]string{
		"wrong user": wrong.uri(shared.source),
		"unreachable": strings.Replace(source, rest[:strings.IndexByte(rest, '/')], closed, 1) +
			"&serverSelectionTimeoutMS=300",
		"not escaped":         "mongodb://secretive:" + secret + "@" + rest,
		"wrong option":        source + "&authMechanism=NONE",
		"no certificate file": source + "&tlsCAFile=/nowhere/ca.pem",
		"wrong replica set":   strings.Replace(source, "replicaSet=", "serverSelectionTimeoutMS=300&replicaSet=x", 1),
		"not a scheme":        strings.TrimPrefix(source, "mongodb://"),
		"bad port":            strings.Replace(source, rest[:strings.IndexByte(rest, '/')], "127.0.0.1:999999", 1),
		"srv that is not":     strings.Replace(source, "mongodb://", "mongodb+srv://", 1),
	} {
		for _, c := range []struct{ command, side string }{{"sync", "SOURCE"}, {"sync", "TARGET"}, {"verify", "SOURCE"}} {
			t.Run(fmt.Sprintf("%s %s of %s", what, c.side, c.command), func(t *testing.T) {
				t.Setenv("MILLRACE_SOURCE", source)
				t.Setenv("MILLRACE_TARGET", target)
				t.Setenv("MILLRACE_"+c.side, uri)
				p := test.Start(t, bin, c.command, "--include", "acc.none", "--log-level", "debug")
				if err := p.Wait(3 * time.Minute); err == nil {
					t.Errorf("it succeeds:\n%s", p.Output())
				}
				silent(t, "the output", p.Output())
			})
		}
	}
}

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	c := lab.ForTest(t, lab.Options{})
	if err := c.Members()[0].Kill(); err != nil {
		t.Fatal(err)
	}
	return c.Members()[0].Host()
}
