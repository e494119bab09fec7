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
	g := r.growth()
	charts, err := g.charts()
	if err != nil {
		return fmt.Errorf("draw the growth: %w", err)
	}
	header, rows := g.table()
	chaining := r.chaining()
	chainHeader, chainRows := chaining.table()
	return t.Execute(w, map[string]any{"Report": r, "Cases": cases, "Ended": r.Ended.UTC().Format("2006-01-02 15:04 UTC"),
		"Growth": len(g) > 0, "GrowthHeader": header, "GrowthRows": rows, "GrowthCharts": views(charts),
		"Chaining": len(chaining) > 0, "ChainingHeader": chainHeader, "ChainingRows": chainRows})
}

func views(charts []drawing) []figureView {
	var all []figureView
	for _, d := range charts {
		all = append(all, figureView{d.title, template.HTML(d.svg)}) // drawn here, names in it are escaped
	}
	return all
}
