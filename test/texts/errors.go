package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// areas are the sections of the page of errors, by the folders whose errors they list.
func areas() [][2]string {
	return [][2]string{
		{"internal/precheck", "Checks before the start"},
		{"internal/seed", "Members from files"},
		{"internal/topology", "Replication topology"},
		{"internal/service", "Service, workers and console"},
		{"internal/server", "Service, workers and console"},
		{"internal/verify", "Verification"},
		{"internal/transform", "Rules"},
		{"internal/fields", "Rules"},
		{"internal/query", "Rules"},
		{"internal/source", "Reading the source"},
		{"internal/origin", "Reading the source"},
		{"internal/copy", "Copying and applying"},
		{"internal/follow", "Copying and applying"},
		{"internal/job", "Copying and applying"},
		{"internal/sink", "Copying and applying"},
		{"internal/schema", "Copying and applying"},
		{"internal/placing", "Copying and applying"},
		{"internal/state", "Copying and applying"},
		{"internal/assign", "Copying and applying"},
		{"internal/ownership", "Copying and applying"},
		{"internal/mongo", "Connections"},
		{"internal", "Settings and commands"},
		{"cmd/millrace/", "Settings and commands"},
	}
}

// printErrors writes a page of the errors that have a remedy, as the code of some folders has them.
func printErrors(out io.Writer, folders []string) error {
	files, consts := map[string]*ast.File{}, map[string]map[string]string{}
	err := eachFile(folders, ".go", func(path string) error {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		files[path] = f
		addConsts(consts, filepath.Dir(path), f)
		return nil
	})
	if err != nil {
		return err
	}
	found := map[string]map[[2]string]bool{}
	for path, f := range files {
		to, r := area(path), remedies{consts[filepath.Dir(path)], strings.HasPrefix(path, "internal/precheck/")}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, is := n.(*ast.CallExpr); is {
				if text, remedy := r.of(call); says(text) && says(remedy) {
					if found[to] == nil {
						found[to] = map[[2]string]bool{}
					}
					found[to][[2]string{text, remedy}] = true
				}
			}
			return true
		})
	}
	fmt.Fprint(out, "# Errors\n\nThe errors that millrace has a remedy for, as its code states them "+
		"(`make docs`). `…` stands for\nnames, values and the cause. The program prints the remedy "+
		"as `hint:`. Exit code 2 means that nothing\nwas written.\n")
	for _, title := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(out, "\n## %s\n\n| error | remedy |\n|---|---|\n", title)
		rows := maps.Keys(found[title])
		for _, row := range slices.SortedFunc(rows, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
			fmt.Fprintf(out, "| %s | %s |\n", row[0], row[1])
		}
	}
	return nil
}

func area(path string) string {
	for _, a := range areas() {
		if strings.HasPrefix(path, a[0]) {
			return a[1]
		}
	}
	return "Settings and commands"
}

// addConsts adds the strings that a file of a package gives names to.
func addConsts(to map[string]map[string]string, dir string, f *ast.File) {
	if to[dir] == nil {
		to[dir] = map[string]string{}
	}
	for _, d := range f.Decls {
		decl, is := d.(*ast.GenDecl)
		if !is || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			for i, value := range spec.Values {
				if lit, is := value.(*ast.BasicLit); is && lit.Kind == token.STRING {
					to[dir][spec.Names[i].Name], _ = strconv.Unquote(lit.Value)
				}
			}
		}
	}
}

// remedies finds the errors of one package, with the constants that it has.
type remedies struct {
	consts map[string]string
	checks bool
}

// of is the text and the remedy that a call joins, "" where it does not.
func (r remedies) of(call *ast.CallExpr) (text, remedy string) {
	name := ""
	switch fn := call.Fun.(type) {
	case *ast.SelectorExpr:
		name = fn.Sel.Name
	case *ast.Ident:
		name = fn.Name
	}
	args := call.Args
	switch {
	case name == "WithHint" && len(args) == 2:
		return cell(r.message(args[0])), cell(r.message(args[1]))
	case r.checks && name == "add" && len(args) >= 4: // level, name, hint, format
		return cell(r.message(args[1]) + ": " + r.message(args[3])), cell(r.message(args[2]))
	}
	return "", ""
}

// message is the text of an expression, with … for what only a run knows.
func (r remedies) message(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.ParenExpr:
		return r.message(e.X)
	case *ast.BinaryExpr:
		return r.message(e.X) + r.message(e.Y)
	case *ast.Ident:
		if text, is := r.consts[e.Name]; is {
			return text
		}
	case *ast.CallExpr:
		if len(e.Args) > 0 { // its format alone
			return r.message(e.Args[0])
		}
	}
	return "…"
}

var (
	verb    = regexp.MustCompile(`%[-+#0-9.]*(\[\d+\])?[b-gopqstvwxTUX]`)
	several = regexp.MustCompile(`…(\.…)+`)
	letter  = regexp.MustCompile(`[a-zA-Z]`)
)

// says reports whether a text has words of its own.
func says(text string) bool { return letter.MatchString(text) }

// cell writes a message for a table.
func cell(text string) string {
	text = strings.ReplaceAll(verb.ReplaceAllString(strings.ReplaceAll(text, "%%", "\x00"), "…"), "\x00", "%")
	text = several.ReplaceAllString(text, "…")
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;", "*", `\*`).Replace(strings.TrimSpace(text))
}
