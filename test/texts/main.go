// Command texts writes the comments and messages of Go code as text files, for a linter of
// prose: each text stands on the line that it has in the code. It also makes a page of the errors.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: texts DIR FOLDER…: write the texts of the Go code below the folders to DIR,\n"+
			"       texts errors FOLDER…: print a page of the errors that have a remedy")
		os.Exit(2)
	}
	do := func() error {
		return eachFile(os.Args[2:], func(path string) error {
			return write(path, filepath.Join(os.Args[1], path+".txt"))
		})
	}
	if os.Args[1] == "errors" {
		do = func() error { return printErrors(os.Stdout, os.Args[2:]) }
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// eachFile calls fn for the Go files below folders, except tests.
func eachFile(folders []string, fn func(path string) error) error {
	for _, folder := range folders {
		if err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return fn(path)
		}); err != nil {
			return err
		}
	}
	return nil
}

// leastWords is how many words a string has at least that is taken for a message.
const leastWords = 4

// write extracts the texts of one file.
func write(path, to string) error {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	lines := make([]string, files.File(f.Pos()).LineCount()+1)
	put := func(at token.Pos, text string, starts, ends bool) {
		if starts && text != "" {
			text = strings.ToUpper(text[:1]) + text[1:] // vale splits sentences before capitals alone
		}
		if text = strings.TrimRight(text, " \n"); ends {
			// The next text is another sentence. A full stop may not end this one: vale takes "ms." for a title.
			text = strings.TrimRight(text, ".") + "!"
		}
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t") { // a table or an example
				line = "!"
			}
			if n := files.Position(at).Line + i; n < len(lines) {
				lines[n] = strings.TrimSpace(lines[n] + " " + line)
			}
		}
	}
	for _, group := range f.Comments {
		for i, c := range group.List {
			switch text := strings.TrimLeft(c.Text, "/* "); {
			case strings.HasPrefix(c.Text, "//go:"):
			case strings.HasPrefix(text, "\t"): // a table or an example
				put(c.Pos(), ".", false, true)
			default:
				put(c.Pos(), text, i == 0, i == len(group.List)-1)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		lit, is := n.(*ast.BasicLit)
		if !is || lit.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(lit.Value); err == nil && len(strings.Fields(text)) >= leastWords {
			put(lit.Pos(), text, true, true)
		}
		return true
	})
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, []byte(strings.Join(lines[1:], "\n")+"\n"), 0o644)
}
