package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/config"
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

// maxWord is the length of words that a line never breaks, in characters.
const maxWord = 20

// foreign shows a text from outside: its direction stays inside, marks replace invisible characters, and long words
// may break.
func foreign(text string) template.HTML {
	var b strings.Builder
	b.WriteString("<bdi>")
	length := 0
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		b.WriteString(marked(text[:n], ""))
		text = text[n:]
		length++
		sign := length >= maxWord/2 && strings.ContainsRune("./_:,;=&?@|", r)
		switch {
		case r == ' ' || r == '-': // lines break there anyway
			length = 0
		case text != "" && (sign || length >= maxWord || !unicode.IsGraphic(r)):
			b.WriteString("<wbr>")
			length = 0
		}
	}
	b.WriteString("</bdi>")
	return template.HTML(b.String()) //nolint:gosec // each part is escaped
}

func advice(text string) template.HTML { return foreign(config.ForJobs(text)) }

func lines(text string) template.HTML {
	return template.HTML(marked(text, "\n\t")) //nolint:gosec // each part is escaped
}

// marked escapes a text for HTML. Marks show what is neither graphic nor in keep.
func marked(text, keep string) string {
	var b strings.Builder
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `<mark>\x%02x</mark>`, text[0])
		case unicode.IsGraphic(r) || strings.ContainsRune(keep, r):
			b.WriteString(template.HTMLEscapeString(text[:n]))
		default:
			fmt.Fprintf(&b, `<mark>\u%04x</mark>`, r)
		}
		text = text[n:]
	}
	return b.String()
}

func short(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n-1]) + "…"
}
