package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed page.html
var page string

// figureView is a chart on the page.
type figureView struct {
	Title string
	SVG   template.HTML
}

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
		Charts []figureView
	}
	var cases []view
	for i := range r.Cases {
		c := &r.Cases[i]
		v := view{Case: c}
		v.Header, v.Rows = c.table()
		charts, err := c.charts()
		if err != nil {
			return fmt.Errorf("draw %s: %w", c.Name(), err)
		}
		v.Charts = views(charts)
		cases = append(cases, v)
	}
	all, err := r.overviews()
	if err != nil {
		return fmt.Errorf("draw what is compared over cases: %w", err)
	}
	type table struct {
		Title  string
		Header []string
		Rows   [][]string
		Notes  []string
		Charts []figureView
	}
	var tables []table
	for _, o := range all {
		tables = append(tables, table{o.title, o.header, o.rows, o.notes, views(o.charts)})
	}
	return t.Execute(w, map[string]any{"Report": r, "Cases": cases, "Ended": r.Ended.UTC().Format("2006-01-02 15:04 UTC"), "Overviews": tables})
}

func views(charts []drawing) []figureView {
	var all []figureView
	for _, d := range charts {
		all = append(all, figureView{d.title, template.HTML(d.svg)}) // drawn here, names in it are escaped
	}
	return all
}
