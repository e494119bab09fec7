package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

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
	unit := read("millrace@.service")
	line := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/millrace (.*)$`).FindStringSubmatch(unit)
	if line == nil {
		t.Fatal("the unit starts no millrace")
	}
	sync, args, err := root.Find(strings.Fields(line[1]))
	if err == nil {
		err = sync.ParseFlags(args)
	}
	if err != nil || sync.Name() != config.CommandSync {
		t.Errorf("the unit starts %q: %v", line[1], err)
	}
	if !strings.Contains(unit, "\nRestartPreventExitStatus="+strconv.Itoa(exitUsage)+"\n") {
		t.Error("the unit starts again what can only fail again")
	}
	for _, variable := range regexp.MustCompile(`(?m)^#?(MILLRACE_\w+)=`).FindAllStringSubmatch(read("example.env"), -1) {
		flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable[1], "MILLRACE_")), "_", "-")
		if f := sync.Flags().Lookup(flag); f == nil {
			t.Errorf("example.env: no flag has the variable %s", variable[1])
		}
	}
	for _, name := range regexp.MustCompile(`src: systemd/([\w@.]+)`).FindAllStringSubmatch(read("nfpm.yaml"), -1) {
		if read(name[1]) == "" || !strings.Contains(read("dist"), name[1]) {
			t.Errorf("nfpm.yaml packs %s, which dist does not put there", name[1])
		}
	}
}
