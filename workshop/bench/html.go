package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/millrace/millrace/workshop/plot"
)

//go:embed page.html
var page string

// WriteHTML writes a report as one page with charts that needs nothing else.
func WriteHTML(w io.Writer, r *Report) error {
	t, err := template.New("page").Parse(page)
	if err != nil {
		return fmt.Errorf("read the page's template: %w", err)
	}
	type view struct {
		*Case
		Header []string
		Rows   [][]string
		Charts []plot.Chart
	}
	var cases []view
	for i := range r.Cases {
		c := &r.Cases[i]
		v, s := view{Case: c}, &plot.Sheet{}
		v.Header, v.Rows = c.table()
		if c.charts(s); s.Err != nil {
			return fmt.Errorf("case %s: %w", c.Name(), s.Err)
		}
		v.Charts = s.Charts
		cases = append(cases, v)
	}
	overviews := r.overviews()
	for _, o := range overviews {
		if o.Err != nil {
			return o.Err
		}
	}
	return t.Execute(w, map[string]any{"Report": r, "Cases": cases, "Ended": r.Ended.UTC().Format("2006-01-02 15:04 UTC"), "Overviews": overviews})
}
