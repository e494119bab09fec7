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
)

// said is what a page says above its content, with the status of the reply. As an error it
// is all that the page shows.
type said struct {
	code       int
	text, hint string
}

// fine says nothing.
func fine() said { return said{code: http.StatusOK} }

// Error is the text.
func (s said) Error() string { return s.text }

// pages are what the templates make of frames. It is safe for concurrent use.
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
	funcs := template.FuncMap{"foreign": foreign, "lines": lines, "short": short, "coded": coded, "moment": moment,
		"stamp": func() string { return assets }}
	for _, n := range names {
		name := strings.TrimSuffix(strings.TrimPrefix(n, "pages/"), ".html")
		if name != "frame" {
			p.byName[name] = template.Must(template.New("frame.html").Funcs(funcs).ParseFS(files, "pages/frame.html", n))
		}
	}
	return p
}

// stamp is a digest of the assets, so that a browser keeps none of another version.
func stamp() string {
	h := sha256.New()
	for _, name := range []string{"console.css", "console.js"} {
		raw, _ := files.ReadFile("assets/" + name)
		h.Write(raw)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// show writes a page, whole or not at all.
func (p *pages) show(w http.ResponseWriter, code int, name string, f frame) {
	var b bytes.Buffer
	if err := p.byName[name].Execute(&b, f); err != nil {
		p.log.Error("a page of the console cannot be written", "page", name, "error", err)
		http.Error(w, "the page cannot be written; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes())
}

// say writes a page with what is said above it.
func (p *pages) say(w http.ResponseWriter, name string, f frame, what said) {
	f.Alert, f.Hint = what.text, what.hint
	p.show(w, what.code, name, f)
}

// fail shows why a request of nobody was not served.
func (p *pages) fail(w http.ResponseWriter, why said) {
	p.say(w, "error", frame{Title: http.StatusText(why.code)}, why)
}
