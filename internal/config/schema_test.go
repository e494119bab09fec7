package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/test/schematest"
)

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	return schematest.Compile(t, text)
}

func validate(s *jsonschema.Schema, file string) error {
	text, err := yaml.YAMLToJSON([]byte(file))
	if err != nil {
		return err
	}
	return schematest.Validate(s, text)
}

// TestSchemaTakesTheExamples: of the docs, and what the other tests give to a sync.
func TestSchemaTakesTheExamples(t *testing.T) {
	s := compiled(t)
	pages, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, example := range regexp.MustCompile("(?s)```yaml[^\n]*\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			n++
			if err := validate(s, example[1]); err != nil {
				t.Errorf("%s: %s: %v", page, example[1], err)
			}
		}
	}
	if n < 11 {
		t.Errorf("only %d examples were found", n)
	}
	for _, file := range []string{
		"include: ['a.x,y', b]", "include: a.x, b", "job: 6.0\nuntil: 2026-01-02T15:04:05Z\nsync:\n  write-concern: 2\n",
		"verify: true\n", "status:\n",
		"verify:\n  max-differences: 5\n  workers: 2\nworkers: 9\n", "rename: {crm: crm2, a=b.c: d.e}", "rename: [a=b]",
		"warn-window: 1h30m\ngive-up-after: 0\n", "compress: off",
		"skip: {a.b: none, a.*: [delete, drop], c: 'insert,update'}", "skip: a.b=delete", "soft-delete: {a.*: deletedAt}",
		"fields: ['a.b={\"drop\": [\"x\"]}']",
		"seed-local:\n  way: stopped\n  join-priority: 0.5\n", "max-rate-bytes: 50MB\nmax-rate-docs: 10",
		"transform-test:\n  sample: 5\n",
	} {
		if err := validate(s, file); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if _, problems := parseFile("f", []byte(file), CommandSync); len(problems) > 0 {
			t.Error(problems)
		}
	}
}

// TestSchemaRefuses: mistyped keys, wrong types and words that there are none of.
func TestSchemaRefuses(t *testing.T) {
	s := compiled(t)
	for _, file := range []string{
		"moed: all", "sync: {moed: all}", "verify: {methd: digest}", "snyc: {mode: all}", "sync: {workers: 4}", "sync: all",
		"config: x", "mode: al", "mode: [all, full]", "mode:", "verify:",
		"readers: many", "readers: 1.5", "readers: [1]", "dry-run: yes", "verify: maybe", "warn-window: 10",
		"warn-window: soon", "include: {a: b}", "include: ['.x']", "rename: {a: [b]}",
		"rename: [a]", "filter: {a.b: }", "filter: {a.b: open}", "filter: {a.b: {x: {$inn: [1]}}}",
		"filter: {a.b: {$where: '1'}}", "filter: a.b", "filter: {.b: {}}",
		"skip: {a.b: deletes}", "skip: {a.b: [delete, dorp]}", "skip: {a.b: {delete: true}}", "skip: {a.b: []}",
		"soft-delete: {a.b: [a, b]}", "soft-delete: {a.b: a.b}", "soft-delete: {a.b: _id}",
		"fields: {a.b: {dorp: [x]}}", "fields: {a.b: {drop: x}}", "fields: {a.b: {mask: {x: {last: four}}}}",
		"fields: {a.b: {convert: {x: {to: number}}}}", "- mode: all", "seed-local: {way: fast}",
	} {
		if validate(s, file) == nil {
			t.Errorf("%s is valid", file)
		}
	}
}

// TestSchemaHasEverySetting: in the file as a whole and in its command's section, with what the flag says of it.
func TestSchemaHasEverySetting(t *testing.T) {
	s := compiled(t)
	section := func(command string) *jsonschema.Schema {
		of := s.Properties[command]
		if of.Then != nil {
			of = of.Then
		}
		return of
	}
	for command, fs := range settingFlags() {
		fs.VisitAll(func(f *pflag.Flag) {
			own, general := section(command).Properties[f.Name], s.Properties[f.Name]
			if f.Name == flagConfig || f.Hidden {
				return
			}
			if own == nil || general == nil {
				t.Errorf("%s of %s is missing", f.Name, command)
				return
			}
			if own.Ref != nil {
				own = own.Ref
			}
			if _, want := Describe(f); own.Description != want {
				t.Errorf("%s of %s: %q", f.Name, command, own.Description)
			}
			text := strings.Trim(f.DefValue, "[]")
			if f.Value.Type() != "string" || Choices(f) != nil || text == "" {
				return
			}
			if err := validate(s, command+":\n  "+f.Name+": "+text+"\n"); err != nil {
				t.Errorf("the default of %s: %v", f.Name, err)
			}
		})
	}
}
