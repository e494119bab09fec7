package floors_test

import (
	"bytes"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// columns is how long a line of Go may be, in characters; a tab is one.
const columns = 120

// TestColumns: no line of Go is longer, but for raw strings, which cannot be broken.
func TestColumns(t *testing.T) {
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, line := range tooLong(text) {
			t.Errorf("%s:%d: longer than %d columns", path, line, columns)
		}
		files++
		return err
	})
	if err != nil || files < 500 {
		t.Error(files, err)
	}
}

// tooLong are the numbers of lines that are, and that no raw string is on.
func tooLong(text []byte) (out []int) {
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	raw := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.STRING && lit[0] == '`' {
			first := file.Line(pos)
			for i := range 1 + strings.Count(lit, "\n") {
				raw[first+i] = true
			}
		}
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if len([]rune(string(line))) > columns && !raw[i+1] {
			out = append(out, i+1)
		}
	}
	return out
}

// TestTooLong: the check finds what it is for.
func TestTooLong(t *testing.T) {
	long := strings.Repeat("x", columns)
	text := "package p\n\nvar a" + long + " = 1\n\nvar b = `\n" + long + "y\n`\n\n// " + long + "\n"
	if got := tooLong([]byte(text)); len(got) != 2 || got[0] != 3 || got[1] != 9 {
		t.Error(got)
	}
}
