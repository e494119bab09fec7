package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"

	"github.com/millrace/millrace/internal/format"
)

// said is a message above a page, with the status of the reply. As an error it is all that the page shows.
type said struct {
	code       int
	text, hint string
}

func fine() said { return said{code: http.StatusOK} }

func (s said) Error() string { return s.text }

// pages writes frames by templates. It is safe for concurrent use.
type pages struct {
	log    *slog.Logger
	byName map[string]*template.Template
}

func newPages(log *slog.Logger) *pages {
	p := &pages{log: log, byName: map[string]*template.Template{}}
	names, err := fs.Glob(files, "pages/*.html")
	if err != nil {
		panic(err) // the pattern is one of ours
	}
	assets := stamp()
	funcs := template.FuncMap{"foreign": foreign, "advice": advice, "lines": lines, "short": short,
		"coded": coded, "moment": moment, "pairs": pairs, "few": few,
		"percent": func(share float64) int { return int(100 * share) }, "stamp": func() string { return assets }}
	for _, n := range names {
		name := strings.TrimSuffix(strings.TrimPrefix(n, "pages/"), ".html")
		if name != "frame" {
			page := template.New("frame.html").Funcs(format.Funcs()).Funcs(funcs)
			p.byName[name] = template.Must(page.ParseFS(files, "pages/frame.html", n))
		}
	}
	return p
}

// stamp returns a digest of the assets, so that a browser uses none of another version.
func stamp() string {
	h := sha256.New()
	_ = fs.WalkDir(files, "assets", func(path string, _ fs.DirEntry, _ error) error { // in memory it cannot fail
		raw, _ := fs.ReadFile(files, path)
		h.Write(raw)
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)[:6])
}

func (p *pages) show(w http.ResponseWriter, name string, f frame) error {
	return p.say(w, name, f, fine())
}

func (p *pages) say(w http.ResponseWriter, name string, f frame, what said) error {
	if what.text != "" {
		f.Alert, f.Hint = what.text, what.hint
	}
	var b bytes.Buffer
	if err := p.byName[name].Execute(&b, f); err != nil {
		p.log.Error("a page of the console cannot be written", "page", name, "error", err)
		http.Error(w, "cannot write the page; the log says why", http.StatusInternalServerError)
		return nil
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(what.code)
	_, _ = w.Write(b.Bytes())
	return nil
}

type pair struct {
	Name  string
	Value any
}

// pairs returns names with their values, which follow them, without empty ones.
func pairs(list ...any) (all []pair) {
	for i := 0; i < len(list); i += 2 {
		if is, _ := template.IsTrue(list[i+1]); is {
			all = append(all, pair{list[i].(string), list[i+1]})
		}
	}
	return all
}
