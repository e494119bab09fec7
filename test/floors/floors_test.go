// Package floors_test checks that imports go one way: floors.txt says which.
package floors_test

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/millrace/millrace/"
	page   = root + "/docs/internals/architecture.md"
)

var update = flag.Bool("update", false, "write the picture of the floors into the page")

// place is where a package stands.
type place struct{ floor, group, at int }

// house is what floors.txt says.
type house struct {
	floors []string
	places map[string]place
	less   map[string][]string
	only   map[string][]string // by package of others
}

func read(t *testing.T) *house {
	t.Helper()
	text, err := os.ReadFile("floors.txt")
	if err != nil {
		t.Fatal(err)
	}
	h := &house{places: map[string]place{}, less: map[string][]string{}, only: map[string][]string{}}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "less":
			h.less[words[1]] = words[2:]
		case words[0] == "only":
			h.only[words[1]] = words[2:]
		default:
			for group, names := range strings.Split(strings.Join(words[1:], " "), " | ") {
				for at, name := range strings.Split(names, ", ") {
					if _, twice := h.places[name]; twice {
						t.Fatalf("floors.txt: %s stands twice", name)
					}
					h.places[name] = place{len(h.floors), group, at}
				}
			}
			h.floors = append(h.floors, strings.TrimSpace(line))
		}
	}
	return h
}

// refuses says why a package may not import another one of ours; "" if it may.
func (h *house) refuses(from, to string) string {
	a, b := h.places[from], h.places[to]
	own := strings.HasPrefix(to, "workshop/") && !strings.HasPrefix(from, "workshop/") && from != "cmd/millrace-bench" &&
		from != "demo"
	within := func(p string) bool { return to == p || strings.HasPrefix(to, p+"/") }
	less, named := h.less[from]
	switch {
	case own:
		return "the product imports nothing of the workshop"
	case a.floor > b.floor:
		return "it stands on a higher floor"
	case a.floor == b.floor && (a.group != b.group || a.at < b.at):
		return "on one floor a package imports those before it in its group"
	case named && less[0] == "not" && slices.ContainsFunc(less[1:], within), named && less[0] != "not" &&
		!slices.ContainsFunc(less, within):
		return "the line less " + from + " leaves it out"
	}
	return ""
}

// imports are the packages that each of ours imports, but for its tests.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, dir := range []string{"internal", "cmd", "workshop", "demo"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			from, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			from = short(filepath.ToSlash(from))
			out[from] = append(out[from], "")
			for _, one := range file.Imports {
				name, err := strconv.Unquote(one.Path.Value)
				if err != nil {
					return err
				}
				out[from] = append(out[from], name)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for from, list := range out {
		slices.Sort(list)
		out[from] = slices.Compact(list)[1:]
	}
	return out
}

func short(name string) string { return strings.TrimPrefix(name, "internal/") }

func TestImportsGoDown(t *testing.T) {
	h, all := read(t), imports(t)
	for name := range h.places {
		if _, there := all[name]; !there {
			t.Errorf("floors.txt: there is no package %s", name)
		}
	}
	for from, list := range all {
		if _, known := h.places[from]; !known {
			t.Errorf("floors.txt: package %s stands on no floor", from)
			continue
		}
		for _, name := range list {
			if to, ours := strings.CutPrefix(name, module); ours {
				if why := h.refuses(from, short(to)); why != "" {
					t.Errorf("%s imports %s: %s", from, short(to), why)
				}
				continue
			}
			for other, users := range h.only {
				if strings.HasPrefix(name+"/", other+"/") && !slices.Contains(users, from) {
					t.Errorf("%s imports %s, which only %s may", from, name, strings.Join(users, ", "))
				}
			}
		}
	}
}

// TestRefusals: the check sees what it is there for.
func TestRefusals(t *testing.T) {
	h := read(t)
	for _, c := range []struct {
		from, to string
		refused  bool
	}{
		{"job", "follow", false},
		{"follow", "job", true},
		{"copy", "verify", true},
		{"sink/mongo", "sink/mongo/fold", false},
		{"sink/mongo/fold", "sink/mongo", true},
		{"sink/mongo", "source/oplog", true},
		{"mongo", "workshop/lab", true},
		{"workshop/ycsb", "workshop/lab", false},
		{"workshop/bench", "copy", true},
		{"config", "sink/mongo/write", true},
		{"stream", "query", true},
	} {
		if why := h.refuses(c.from, c.to); (why != "") != c.refused {
			t.Errorf("%s imports %s: %q", c.from, c.to, why)
		}
	}
}

// TestPicture: the page shows the floors as they are.
func TestPicture(t *testing.T) {
	const begin, end = "<!-- floors: make one PKG=./test/floors ARGS=-update -->\n```\n", "```\n<!-- end of floors -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the picture", page)
	}
	want := before + begin + picture(read(t)) + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s shows other floors than floors.txt; write them with -update", page)
	}
}

// picture draws the floors, folded to the width of a page.
func picture(h *house) string {
	var b strings.Builder
	for _, floor := range h.floors {
		name, packages, _ := strings.Cut(floor, " ")
		line := fmt.Sprintf("%-10s", name)
		groups := strings.Split(strings.TrimSpace(packages), " | ")
		for i, group := range groups {
			if i < len(groups)-1 {
				group += " |"
			}
			for _, word := range strings.Fields(group) {
				if len(line)+1+len(word) > 100 {
					b.WriteString(line + "\n")
					line = strings.Repeat(" ", 10)
				}
				line += " " + word
			}
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
