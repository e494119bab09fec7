package spawn

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestNoSettings(t *testing.T) {
	t.Setenv("MILLRACE_TARGET", "mongodb://u:password@h")
	t.Setenv("OTHER", "stays")
	for _, cmd := range []func() ([]byte, error){Command("env").Output, CommandContext(t.Context(), "env").Output} {
		out, err := cmd()
		if err != nil {
			t.Fatal(err)
		}
		// By line: make passes on the settings that it is called with in a variable of its own.
		env := "\n" + string(out)
		if settings, others := strings.Contains(env, "\nMILLRACE_"), strings.Contains(env, "\nOTHER=stays\n"); settings ||
			!others {
			t.Errorf("settings: %v, others: %v", settings, others)
		}
	}
}

// Nobody else makes commands.
func TestTheOnlyPlace(t *testing.T) {
	makes := regexp.MustCompile(`exec\.(Command|CommandContext)\(|exec\.Cmd\{|os\.StartProcess|syscall\.(Exec|ForkExec)`)
	for _, root := range []string{"../../cmd", "../../demo", "../../internal", "../../workshop"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.HasSuffix(path, "internal/spawn/spawn.go") {
				return err
			}
			raw, err := os.ReadFile(path)
			if found := makes.Find(raw); found != nil {
				t.Errorf("%s has %s; use package spawn", path, found)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
