// Package workshop_test checks the one rule of this folder: the workshop and tests import
// the product, and the product never imports the workshop.
package workshop_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestTheProductImportsNothingOfTheWorkshop(t *testing.T) {
	const module = "github.com/millrace/millrace/"
	for _, root := range []string{"internal", filepath.Join("cmd", "millrace")} {
		files := 0
		err := filepath.WalkDir(filepath.Join("..", root), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, imported := range file.Imports {
				name, err := strconv.Unquote(imported.Path.Value)
				if err != nil {
					return err
				}
				if strings.HasPrefix(name+"/", module+"workshop/") {
					t.Errorf("%s imports %s; move what both need to internal", path, strings.TrimPrefix(name, module))
				}
			}
			return nil
		})
		if err != nil || files == 0 {
			t.Errorf("%s: %d files, %v", root, files, err)
		}
	}
}
