package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/cli"
	clitest "github.com/millrace/millrace/test/cli"
)

func TestDocsAreUpToDate(t *testing.T) {
	clitest.DocsAreUpToDate(t, line, "../millrace-bench/product.variables")
}

// The schema in docs is the one that the command writes.
func TestSchemaIsUpToDate(t *testing.T) {
	b := newBench(t, nil)
	if code := b.run(t.Context(), "config", "schema"); code != cli.ExitOK {
		t.Fatal(code, b.stderr.String())
	}
	raw, err := os.ReadFile("../../docs/millrace.schema.json")
	if err != nil || string(raw) != b.stdout.String() {
		t.Errorf("docs/millrace.schema.json is out of date (%v); run make docs", err)
	}
	for _, command := range []string{"sync", "verify"} {
		cmd, _, err := newApp().rootCommand().Find([]string{command})
		if err != nil {
			t.Fatal(err)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "config" && f.Name != "help" && !strings.Contains(string(raw), "\n  \""+f.Name+"\": {") {
				t.Errorf("the schema lacks %s", f.Name)
			}
		})
	}
}

// The pages name flags as they are typed.
func TestManPages(t *testing.T) {
	sync := string(clitest.ManPages(t, line)["millrace-sync.1"])
	for _, want := range []string{".TH MILLRACE\\-SYNC 1 \"2", `.SS What is copied`,
		`\fB\-\-on\-existing\fR \fIpolicy\fR`, "(default fail)", ".BR millrace (1)"} {
		if !strings.Contains(sync, want) {
			t.Errorf("the page of sync lacks %q:\n%s", want, sync)
		}
	}
}
