// Command texts writes the comments and messages of Go code as text files, for a linter of
// prose: each text stands on the line that it has in the code. It also makes a page of the errors.
package main

import (
	"errors"
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
		return errors.Join(
			eachFile(os.Args[2:], ".go", func(path string) error {
				return write(path, filepath.Join(os.Args[1], path+".txt"))
			}),
			eachFile(os.Args[2:], ".txt", func(path string) error { return writeHelp(path, filepath.Join(os.Args[1], path)) }))
	}
	if os.Args[1] == "errors" {
		do = func() error { return printErrors(os.Stdout, os.Args[2:]) }
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// eachFile calls fn for the files of a kind below folders, except tests and their data.
func eachFile(folders []string, kind string, fn func(path string) error) error {
	for _, folder := range folders {
		if err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if d != nil && d.Name() == "testdata" {
				return filepath.SkipDir
			}
			if err != nil || d.IsDir() || !strings.HasSuffix(path, kind) || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return fn(path)
		}); err != nil {
			return err
		}
	}
	return nil
}

// writeHelp extracts the sentences of texts that programs embed. In a help, indented lines are examples. Elsewhere each
// line is a sentence.
func writeHelp(path, to string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	help := filepath.Base(path) == "help.txt"
	var out strings.Builder
	for line := range strings.Lines(string(raw)) {
		text := strings.TrimSpace(line)
		switch {
		case text == "", strings.HasPrefix(text, "#"), strings.HasPrefix(text, "--"), help && strings.HasPrefix(line, " "):
			text = "!"
		case !help:
			text += "!"
		}
		out.WriteString(text + "\n")
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, []byte(out.String()), 0o644)
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
