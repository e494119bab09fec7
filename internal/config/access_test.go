package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFilesOfDefinitions: a definition names files only below --tls-dir, all failures look the same, and checking
// one opens none: a device would fill the memory, a FIFO would block for ever.
func TestFilesOfDefinitions(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret.pem")
	fifo := filepath.Join(dir, "fifo")
	for _, err := range []error{os.WriteFile(filepath.Join(dir, "ca.pem"), []byte("no certificate"), 0o600),
		os.WriteFile(outside, []byte("x"), 0o600), os.WriteFile(filepath.Join(dir, "big"), make([]byte, maxTLSFile+1), 0o600),
		os.Symlink(outside, filepath.Join(dir, "link")), os.Symlink(filepath.Dir(outside), filepath.Join(dir, "folder")),
		syscall.Mkfifo(fifo, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w := &Work{TLSDir: dir}
	access := w.Access(func(string) (string, bool) { return "", false })
	const refused = "only readable files of at most 1 MB below its --tls-dir"
	said := func(with func() Problems) string {
		t.Helper()
		done := make(chan string, 1)
		go func() {
			if problems := with(); len(problems) > 0 {
				done <- problems.Error()
			}
			close(done)
		}()
		select {
		case text := <-done:
			return text
		case <-time.After(20 * time.Second):
			t.Fatal("a file was opened, and blocks")
			return ""
		}
	}
	for _, file := range []string{"/dev/zero", outside, "link", "folder/secret.pem", "big", "fifo", fifo,
		"none", "../x", ".", "",
		filepath.Join(dir, "..", filepath.Base(dir), "link")} {
		for _, option := range []string{"tlsCAFile", "TLSCAFILE", "tls%43AFile", "sslCertificateAuthorityFile",
			"tlsCertificateKeyFile",
			"tlsCertificateFile=ca.pem;tlsPrivateKeyFile"} {
			text := "source: \"mongodb://h/?tls=true&" + option + "=" + file + "\"\ntarget: mongodb://t/\n"
			got := said(func() Problems { _, p := Definition("a", text, access); return p })
			if !strings.Contains(got, refused) || strings.Contains(got, "no such file") {
				t.Errorf("%s=%s on a worker: %s", option, file, got)
			}
			if got := said(func() Problems { _, p := CheckDefinition("a", text); return p }); got != "" {
				t.Errorf("%s=%s where no job runs: %s", option, file, got)
			}
		}
	}
	for _, file := range []string{"ca.pem", "./ca.pem", filepath.Join(dir, "ca.pem")} {
		s, problems := Definition(
			"a",
			"source: mongodb://h/?tlsCAFile="+file+"&appName=x\ntarget: mongodb://t/\nsource-shard: "+
				"[s0=mongodb://h/?tlsCAFile="+file+"]\n",
			access,
		)
		want := strings.ReplaceAll(filepath.Join(dir, "ca.pem"), "/", "%2F")
		if len(problems) > 0 || s.Source != "mongodb://h/?tlsCAFile="+want+"&appName=x" {
			t.Errorf("%s: %s, %s", file, s.Source, problems)
		}
	}
	w.TLSDir = ""
	if _, problems := Definition("a", "source: mongodb://h/?tlsCAFile=ca.pem\ntarget: mongodb://t/\n", access); len(
		problems,
	) != 1 {
		t.Errorf("without --tls-dir: %s", problems)
	}
	access.Secret = func(string, string) (string, error) { return "mongodb://h/?tlsCAFile=" + outside, nil }
	for reference, fault := range map[string]bool{"env:S": false, "file:s": false,
		"sealed:YWdlLWVuY3J5cHRpb24ub3JnL3YxCg": true,
	} {
		_, problems := Definition("a", "source: "+reference+"\ntarget: mongodb://t/\n", access)
		if (len(problems) > 0) != fault {
			t.Errorf("%s names a file outside: %s", reference, problems)
		}
	}
}

// TestMachineOfDefinitions: a definition cannot have a worker send a token of its machine to a host, or look for
// sockets there; the operator's own connection string may.
func TestMachineOfDefinitions(t *testing.T) {
	const aws = "mongodb://h/?authSource=%24external&authMechanism=MONGODB-AWS"
	access := (&Work{}).Access(func(string) (string, bool) { return "", false })
	for _, uri := range []string{aws, "mongodb+srv://h.example/?auth%4DECHANISM=MONGODB%2DAWS",
		"mongodb://h/?tls=true;authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:k8s"} {
		text := "source: \"" + uri + "\"\ntarget: mongodb://t/\n"
		_, problems := Definition("a", text, access)
		_, checked := CheckDefinition("a", text)
		for _, p := range []Problems{problems, checked} {
			if len(p) != 1 || !strings.Contains(p.Error(), "identity of the worker's machine") {
				t.Errorf("%s: %s", uri, p)
			}
		}
	}
	const socket = "mongodb://h,%2Ftmp%2Fmongodb-27017.sock/?replicaSet=a"
	for _, text := range []string{"source: " + socket, "source: mongodb://s/\nsource-shard: \"s0=" + socket + "\""} {
		_, problems := CheckDefinition("a", text+"\ntarget: mongodb://t/\n")
		if len(problems) != 1 || !strings.Contains(problems.Error(), "names a socket") {
			t.Errorf("%s: %s", text, problems)
		}
	}
	for _, own := range []string{aws, socket} {
		access.Secret = func(string, string) (string, error) { return own, nil }
		if _, problems := Definition("a", "source: env:S\ntarget: mongodb://t/\n", access); len(problems) > 0 {
			t.Error(problems)
		}
	}
}

// TestSpoolOfDefinitions: a definition chooses no directory of the worker.
func TestSpoolOfDefinitions(t *testing.T) {
	const text = "source: mongodb://s/\ntarget: mongodb://t/\nspool-max: 5MB\n"
	if s, problems := CheckDefinition("a", text); len(problems) > 0 || s.SpoolBytes != 5_000_000 {
		t.Errorf("%d, %s", s.SpoolBytes, problems)
	}
	if _, problems := CheckDefinition("a", text+"spool-dir: /etc\n"); !strings.Contains(
		problems.Error(),
		"spool-dir",
	) {
		t.Errorf("a directory is taken: %s", problems)
	}
}

// TestJobsOfSecrets: a secret that lists its jobs is for no others.
func TestJobsOfSecrets(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"some": "mongodb://s/", "some.jobs": "shop-*\nbill\n",
		"all": "mongodb://s/", "none": "mongodb://s/", "none.jobs": "\n", "real": "mongodb://s/", "alias.jobs": "shop-*"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A list beside a link is for what the link leads to, and a list beside that is for the link.
	for link, to := range map[string]string{"alias": "real", "other": "some"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{
		"MILLRACE_SECRET_SOME":      "mongodb://s/",
		"MILLRACE_SECRET_SOME_JOBS": "shop-*, bill",
		"MILLRACE_SECRET_ALL":       "mongodb://s/",
		"MILLRACE_SECRET_NONE":      "mongodb://s/",
		"MILLRACE_SECRET_NONE_JOBS": " ",
	}
	access := (&Work{SecretsDir: dir}).Access(
		func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	)
	for _, c := range []struct {
		reference, job string
		ok             bool
	}{
		{"env:SOME", "shop-1", true}, {"env:SOME", "bill", true}, {"env:SOME", "other", false}, {"env:ALL", "other", true},
		{"env:SOME", "", true}, {"env:SOME_JOBS", "shop-1", false}, {"file:some", "bill", true},
		{"file:some", "other", false},
		{"env:NONE", "other", false}, {"file:none", "other", false}, {"file:./some", "other", false},
		{"file:all", "other", true}, {"file:some.jobs", "shop-1", false},
		{"file:alias", "other", false}, {"file:real", "other", false}, {"file:real", "shop-1", true},
		{"file:alias", "shop-1", true}, {"file:other", "other", false}, {"file:other", "bill", true},
	} {
		if _, err := access.Secret(c.job, c.reference); (err == nil) != c.ok {
			t.Errorf("%s for job %q: %v", c.reference, c.job, err)
		}
	}
}
