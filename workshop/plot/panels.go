package plot

import (
	"fmt"
	"html"
	"strings"
)

// Panel is one chart of a picture of several.
type Panel struct {
	Title string
	SVG   string // as Bars and Lines draw it
}

// Panels puts charts into one picture, so many beside each other. Charts that
// are "" are left out. It is "" when none is left.
func Panels(all []Panel, columns int) string {
	const title = 24 // height of a title
	var drawn strings.Builder
	n, wide := 0, 0
	for _, p := range all {
		inner, whole := strings.CutPrefix(p.SVG, "<svg")
		if !whole {
			continue
		}
		x, y := n%columns*width, n/columns*(title+height)
		fmt.Fprintf(&drawn, `<text x="%d" y="%d" style="font:14px sans-serif;fill:rgb(51,51,51)">%s</text>`, x+10, y+title-6, html.EscapeString(p.Title))
		fmt.Fprintf(&drawn, `<svg x="%d" y="%d" width="%d" height="%d"%s`, x, y+title, width, height, inner)
		n++
		wide = max(wide, x+width)
	}
	if n == 0 {
		return ""
	}
	high := (n + columns - 1) / columns * (title + height)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d"><rect width="%d" height="%d" style="fill:white"/>%s</svg>`,
		wide, high, wide, high, &drawn)
}
