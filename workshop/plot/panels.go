package plot

import (
	"fmt"
	"html"
	"strings"
)

// Panels puts charts into one picture, so many beside each other. It is "" without
// charts.
func Panels(all []Chart, columns int) string {
	const title = 24 // height of a title
	var drawn strings.Builder
	wide := 0
	for n, p := range all {
		inner := strings.TrimPrefix(string(p.SVG), "<svg")
		x, y := n%columns*width, n/columns*(title+height)
		fmt.Fprintf(&drawn, `<text x="%d" y="%d" style="font:14px sans-serif;fill:rgb(51,51,51)">%s</text>`, x+10, y+title-6, html.EscapeString(p.Title))
		fmt.Fprintf(&drawn, `<svg x="%d" y="%d" width="%d" height="%d"%s`, x, y+title, width, height, inner)
		wide = max(wide, x+width)
	}
	if len(all) == 0 {
		return ""
	}
	high := (len(all) + columns - 1) / columns * (title + height)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d"><rect width="%d" height="%d" style="fill:white"/>%s</svg>`,
		wide, high, wide, high, &drawn)
}
