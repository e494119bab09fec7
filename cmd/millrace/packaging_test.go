package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
)

// What the packages bring names commands, flags and exit codes that there are.
func TestPackagingFits(t *testing.T) {
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join("..", "..", "packaging", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	root := newApp().rootCommand()
	starts := func(what string, args []string) *cobra.Command {
		cmd, rest, err := root.Find(args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err != nil {
			t.Errorf("%s starts %q: %v", what, args, err)
		}
		return cmd
	}
	variables := func(what, text string, cmd *cobra.Command) {
		for _, variable := range regexp.MustCompile(`(?m)^#?(MILLRACE_\w+)=`).FindAllStringSubmatch(text, -1) {
			flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable[1], "MILLRACE_")), "_", "-")
			if f := cmd.Flags().Lookup(flag); f == nil && !strings.HasPrefix(variable[1], "MILLRACE_SECRET_") {
				t.Errorf("%s: no flag has the variable %s", what, variable[1])
			}
		}
	}
	execStart := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/millrace (.*)$`)
	for _, name := range []string{"serve", "worker"} {
		line := execStart.FindStringSubmatch(read("millrace-" + name + ".service"))
		if line == nil {
			t.Fatalf("the unit %s starts no millrace", name)
		}
		cmd := starts("the unit "+name, strings.Fields(line[1]))
		if cmd.Name() != name {
			t.Errorf("the unit %s starts %s", name, cmd.Name())
		}
		variables("example-"+name+".env", read("example-"+name+".env"), cmd)
	}
	for _, name := range []string{"compose.yaml", "kubernetes/millrace.yaml"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, args := range containers(t, string(raw)) {
			if args[0] == "serve" || args[0] == "worker" {
				starts(name, args)
				found++
			}
		}
		if found < 2 {
			t.Errorf("%s starts %d processes of millrace", name, found)
		}
	}
	unit := read("millrace@.service")
	line := execStart.FindStringSubmatch(unit)
	if line == nil {
		t.Fatal("the unit starts no millrace")
	}
	sync := starts("the unit", strings.Fields(line[1]))
	if sync.Name() != config.CommandSync {
		t.Errorf("the unit starts %q", line[1])
	}
	if !strings.Contains(unit, "\nRestartPreventExitStatus="+strconv.Itoa(cli.ExitUsage)+"\n") {
		t.Error("the unit starts again what can only fail again")
	}
	variables("example.env", read("example.env"), sync)
	for _, name := range regexp.MustCompile(`src: systemd/([\w@.-]+)`).FindAllStringSubmatch(read("nfpm.yaml"), -1) {
		if name[1] == "common.conf" { // of another unit
			continue
		}
		if read(name[1]) == "" || !strings.Contains(read("dist"), name[1]) {
			t.Errorf("nfpm.yaml packs %s, which dist does not put there", name[1])
		}
	}
}

// containers are the arguments of all containers that YAML describes, of compose
// (command) and of Kubernetes (args).
func containers(t *testing.T, text string) (all [][]string) {
	t.Helper()
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, one := range v {
				list, ok := one.([]any)
				if !ok || key != "command" && key != "args" {
					walk(one)
					continue
				}
				var args []string
				for _, a := range list {
					args = append(args, a.(string))
				}
				all = append(all, args)
			}
		case []any:
			for _, one := range v {
				walk(one)
			}
		}
	}
	d := yaml.NewDecoder(strings.NewReader(text))
	for {
		var doc map[string]any
		if err := d.Decode(&doc); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		walk(doc)
	}
}
