package published

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/workshop/plot"
)

// none stands where there is no figure.
const none = "–"

// intro is what the page begins with.
//
//go:embed intro.txt
var intro string

// pictures is the directory of the charts, beside the page.
const pictures = "img"

// width is that of a page's lines; tables and commands are wider.
const width = 100

// File is one file that belongs to the page, by its path from the page's directory.
type File struct{ Name, Text string }

// Page writes the page and returns the charts that it names. stem begins the
// charts' names: the name of the page without its end.
func Page(w io.Writer, r *Results, stem string) ([]File, error) {
	p := &page{stem: stem}
	p.text.WriteString(intro)
	p.summary(r)
	for _, t := range Tables() {
		if err := p.table(&t, r.Of(t.Number)); err != nil {
			return nil, fmt.Errorf("page of table %d: %w", t.Number, err)
		}
	}
	if _, err := io.WriteString(w, p.text.String()); err != nil {
		return nil, fmt.Errorf("write page: %w", err)
	}
	return p.files, nil
}

type page struct {
	stem  string
	text  strings.Builder
	files []File
	notes []string // of the group under way
}

func (p *page) line(s string) { p.text.WriteString(s + "\n") }

// block writes lines after an empty one.
func (p *page) block(lines ...string) { p.line("\n" + strings.Join(lines, "\n")) }

// prose writes a paragraph after an empty line.
func (p *page) prose(text string) { p.block(wrap(text, "", "")) }

func (p *page) bullets(texts []string) {
	for _, s := range texts {
		p.line(wrap(s, "* ", "  "))
	}
}

// wrap folds a text to the width of a page.
func wrap(text, first, others string) string {
	var b strings.Builder
	line := first
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			b.WriteString(line + "\n")
			line = others + word
		default:
			line += " " + word
		}
	}
	return b.String() + line
}

// row writes a row of a Markdown table.
func (p *page) row(cells []string) {
	for i := range cells {
		cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
	}
	p.line("| " + strings.Join(cells, " | ") + " |")
}

func (p *page) header(cells []string) {
	p.row(cells)
	p.line("|" + strings.Repeat("---|", len(cells)))
}

// summary has a line for each headline.
func (p *page) summary(r *Results) {
	p.block("## In short", "")
	p.header([]string{"table", "what is compared", "published", "here", "here, the run before"})
	for _, line := range Summary(r) {
		p.row([]string{line.Table, line.Text, line.Published, line.Here, line.Before})
	}
}

// Line is one line of the summary.
type Line struct {
	Table     string `json:"table"`
	Text      string `json:"text"`
	Published string `json:"published"`
	Here      string `json:"here"`
	Before    string `json:"before"` // of the run before
}

// Summary is the ratios that tell most, published and here.
func Summary(r *Results) (all []Line) {
	for _, t := range Tables() {
		m := r.Of(t.Number)
		for _, g := range t.Groups {
			for _, row := range g.Rows {
				for _, h := range row.Headlines {
					line := Line{Table: fmt.Sprintf("%d. %s", t.Number, t.Title), Text: h.Text}
					if before := m.before(); h.Key != "" {
						line.Published, line.Here, line.Before = t.figureText(h.Key), m.figureText(h.Key), before.figureText(h.Key)
					} else {
						line.Published, line.Here, line.Before = t.stated(g, headlined(g, row)), g.measured(m, row),
							g.measured(before, row)
					}
					all = append(all, line)
				}
			}
		}
	}
	return all
}

// headlined is the row whose published ratio a headline shows: its own or, for our row, that of the last published
// row before it with the same work.
func headlined(g Group, row Row) Row {
	if len(row.Published) > 0 {
		return row
	}
	at := slices.IndexFunc(g.Rows, func(r Row) bool { return r.Key == row.Key })
	for _, r := range slices.Backward(g.Rows[:max(at, 0)]) {
		if len(r.Published) > 0 && r.Place[0] == row.Place[0] {
			return r
		}
	}
	return row
}

// figureText is a published figure.
func (t *Table) figureText(key string) string {
	v, ok := t.published(key)
	if !ok {
		return none
	}
	return number(v)
}

// figureText is a figure that was measured.
func (m *Measured) figureText(key string) string {
	s, ok := m.figure(key)
	if !ok {
		return none
	}
	return spread(s, number)
}

// stated is the published ratio of a row.
func (t *Table) stated(g Group, r Row) string {
	if v, ok := t.ratio(r.Ratio); ok {
		return g.ratioText(v)
	}
	return cmp.Or(r.Stated, none)
}

// measured is the ratio of a row here.
func (g Group) measured(m *Measured, r Row) string {
	s, ok := m.ratio(r.Ratio)
	if !ok {
		return none
	}
	return spread(s, g.ratioText)
}

// ratioText is a ratio as its group shows it.
func (g Group) ratioText(v float64) string {
	if g.Change {
		return strings.Replace(fmt.Sprintf("%+.1f %%", 100*(v-1)), "-", "−", 1)
	}
	return fmt.Sprintf("%.2f", v)
}

// table writes all of a table.
func (p *page) table(t *Table, m *Measured) error {
	p.block(fmt.Sprintf("## %d. %s", t.Number, t.Title))
	p.prose("**Published** by " + t.By + ". " + upper(t.Machine) + ". " + upper(t.Conditions) + ".")
	p.line("")
	p.bullets(t.Says)
	p.prose("**Measured** " + m.on())
	p.line("")
	p.bullets(append(m.work(t), t.Here...))
	if m != nil {
		p.bullets(m.Notes)
		if t.found != nil {
			p.bullets(t.found(m))
		}
		p.block("```text", m.Command, "```")
	}
	var all *charts
	if m != nil {
		all = &charts{}
		if t.charts != nil {
			t.charts(all, t, m)
		}
		m.curves(all)
		if all.Err != nil {
			return all.Err
		}
		p.charts(t, all)
	}
	for _, g := range t.Groups {
		p.group(t, g, m)
	}
	p.absent(t)
	return nil
}

// absent lists all that cannot be had here.
func (p *page) absent(t *Table) {
	p.block("### Left out", "")
	for _, a := range t.Absent {
		p.bullets([]string{a.What + ": " + a.Why + "."})
	}
}

// on says when and on what a table was measured.
func (m *Measured) on() string {
	if m == nil {
		return "not yet."
	}
	return m.Started.UTC().Format(time.DateOnly) + " on " + m.Machine.String() + "."
}

// work says what was done, and what the figures of a table are worth.
func (m *Measured) work(t *Table) []string {
	if m == nil {
		return nil
	}
	all := []string{fmt.Sprintf("millrace %s, scale %s, %s, %s.", m.Version, m.Scale,
		plot.Several(int64(m.Rounds), "round"), m.Ended.Sub(m.Started).Round(time.Second))}
	all = append(all, upper(m.Sizes)+".")
	if m.Cut {
		all = append(all, "The run was cut off.")
	}
	middle, most, figures := m.noise()
	if figures == 0 {
		return append(all, "One round shows no noise.")
	}
	all = append(all, fmt.Sprintf("Noise, the range of a figure's rounds divided by their median: %.0f %% for the middle "+
		"one of %d figures, %.0f %% at most.", 100*middle, figures, 100*most))
	return append(all, m.against(t)...)
}

// before are the figures of the run before; nil for none.
func (m *Measured) before() *Measured {
	if m == nil || m.Before == nil {
		return nil
	}
	return &Measured{Figures: m.Before.Figures}
}

// group writes a table of rows, and the reasons below it.
func (p *page) group(t *Table, g Group, m *Measured) {
	p.notes = nil
	p.block("### "+g.Title, "")
	p.header(g.headings())
	for _, r := range g.Rows {
		p.row(p.cells(t, g, m, r))
	}
	if len(p.notes) == 0 {
		return
	}
	for i, n := range p.notes {
		p.prose(sign(i) + " " + n)
	}
}

// public reports that the publication has something of the group.
func (g Group) public() bool {
	return slices.ContainsFunc(g.Rows, func(r Row) bool { return len(r.Published) > 0 })
}

// headings are those of a group's table.
func (g Group) headings() []string {
	all := slices.Clone(g.Place)
	if g.public() {
		for _, c := range g.Columns {
			all = append(all, "published: "+c.Name+", "+string(c.Unit))
		}
		if g.Ratio != "" {
			all = append(all, "published: "+g.Ratio)
		}
	}
	for _, c := range g.Columns {
		all = append(all, "here: "+cmp.Or(c.HereName, c.Name)+", "+string(cmp.Or(c.HereUnit, c.Unit)))
	}
	if g.Ratio != "" {
		all = append(all, "here: "+g.Ratio)
	}
	return append(all, "why different")
}

// cells are those of one row.
func (p *page) cells(t *Table, g Group, m *Measured, r Row) []string {
	all := slices.Clone(r.Place)
	if g.public() {
		for _, c := range g.Columns {
			all = append(all, t.figureText(key(r.Key, c.Key)))
		}
		if g.Ratio != "" {
			all = append(all, t.stated(g, r))
		}
	}
	missing := ""
	for _, c := range g.Columns {
		k := key(r.Key, c.Key)
		all = append(all, m.figureText(k))
		if _, ok := m.figure(k); !ok {
			missing = cmp.Or(missing, m.why(k))
		}
	}
	if g.Ratio != "" {
		all = append(all, g.measured(m, r))
	}
	return append(all, p.reasons(m, r, missing))
}

// reasons are the signs of a row's notes.
func (p *page) reasons(m *Measured, r Row, missing string) string {
	var signs []string
	if r.Absent != "" {
		return p.note("Cannot be measured here: " + r.Absent + ".")
	}
	if missing != "" {
		signs = append(signs, p.note("Not measured: "+missing+"."))
	}
	if r.Why != "" {
		signs = append(signs, p.note(m.fill(r.Why)))
	}
	return strings.Join(signs, ", ")
}

// note keeps a text below the group's table, once, and gives its sign.
func (p *page) note(text string) string {
	at := slices.Index(p.notes, text)
	if at < 0 {
		at = len(p.notes)
		p.notes = append(p.notes, text)
	}
	return sign(at)
}

func sign(i int) string { return fmt.Sprintf("(%d)", i+1) }

// why says why a figure is not there.
func (m *Measured) why(key string) string {
	switch {
	case m == nil:
		return "nothing of this table was, yet"
	case m.Missing[key] != "":
		return strings.TrimRight(m.Missing[key], ".")
	}
	return "the run did not ask for it"
}

// fill puts medians in the places of the keys of a text.
func (m *Measured) fill(text string) string {
	return regexp.MustCompile(`\{[^{}]+\}`).ReplaceAllStringFunc(text, func(name string) string {
		s, ok := m.figure(strings.Trim(name, "{}"))
		if !ok {
			return "(not measured)"
		}
		return number(s.Median)
	})
}

// charts shows one picture of a table, and names the others.
func (p *page) charts(t *Table, all *charts) {
	shown := max(slices.Index(all.names, t.Picture), 0)
	var others []string
	for i, c := range all.Charts {
		name := fmt.Sprintf("%s/%s-%d-%s.svg", pictures, p.stem, t.Number, all.names[i])
		p.files = append(p.files, File{name, string(c.SVG)})
		if i == shown {
			p.block("![" + c.Title + "](" + name + ")")
		} else {
			others = append(others, "["+c.Title+"]("+name+")")
		}
	}
	if len(others) > 0 {
		p.prose("More pictures:")
		p.line("")
		p.bullets(others)
	}
}

// number writes a figure; those that are whole stay so.
func number(v float64) string {
	if v == 0 {
		return "0"
	}
	if v == float64(int64(v)) && v < 100 {
		return fmt.Sprintf("%d", int64(v))
	}
	return plot.Figure(v)
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// median is that of a figure, and 0 for what was not measured.
func (m *Measured) median(key string) float64 {
	s, ok := m.figure(key)
	if !ok {
		return 0
	}
	return s.Median
}
