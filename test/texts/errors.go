package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
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
	found := map[string]map[[2]string]bool{}
	err := eachFile(folders, func(path string) error {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		to := area(path)
		ast.Inspect(f, func(n ast.Node) bool {
			if call, is := n.(*ast.CallExpr); is {
				if text, remedy := remedied(call); text != "" && remedy != "" {
					if found[to] == nil {
						found[to] = map[[2]string]bool{}
					}
					found[to][[2]string{text, remedy}] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		return err
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

// remedied is the text and the remedy that a call joins, "" where it does not.
func remedied(call *ast.CallExpr) (text, remedy string) {
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
		return message(args[0]), message(args[1])
	case name == "add" && len(args) >= 4: // of a check: level, name, hint, format
		return message(args[1]) + ": " + message(args[3]), message(args[2])
	}
	return "", ""
}

// message is the text of an expression: of strings joined by +, and of what a call formats.
func message(e ast.Expr) string {
	var text strings.Builder
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if len(n.Args) > 0 { // its format alone
				text.WriteString(message(n.Args[0]))
			}
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				if s, err := strconv.Unquote(n.Value); err == nil {
					text.WriteString(s)
				}
			}
		}
		return true
	})
	s := regexp.MustCompile(`%[+#]?[a-z]`).ReplaceAllString(text.String(), "…")
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;", "*", `\*`).Replace(strings.TrimSpace(s))
}
