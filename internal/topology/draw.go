package topology

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Line is one member in the picture of a tree.
type Line struct {
	Prefix string // the branches before it
	Host   string
	Depth  int // 0 is the primary, or a member without a source
}

// Lines draws a tree, the source of each member by host: the primary first, then members without a source.
// A circle, which a set can have for a moment, is cut where it closes.
func Lines(set *Set, tree map[string]string) []Line {
	children := map[string][]string{}
	for _, m := range set.Members {
		if src := tree[m.Host]; set.Member(src) != nil {
			children[src] = append(children[src], m.Host)
		}
	}
	for _, c := range children {
		slices.Sort(c)
	}
	d := drawing{children: children, seen: map[string]bool{}}
	if p := set.Primary(); p != nil {
		d.draw(p.Host, "", "", 0)
	}
	for _, rooted := range []bool{true, false} {
		for _, m := range set.Members {
			if !d.seen[m.Host] && (!rooted || set.Member(tree[m.Host]) == nil) {
				d.draw(m.Host, "", "", 0)
			}
		}
	}
	return d.lines
}

type drawing struct {
	children map[string][]string
	seen     map[string]bool
	lines    []Line
}

func (d *drawing) draw(host, prefix, below string, depth int) {
	d.seen[host] = true
	d.lines = append(d.lines, Line{Prefix: prefix, Host: host, Depth: depth})
	kids := slices.DeleteFunc(slices.Clone(d.children[host]), func(h string) bool { return d.seen[h] })
	for i, k := range kids {
		if d.seen[k] {
			continue
		}
		if i == len(kids)-1 {
			d.draw(k, below+"└─ ", below+"   ", depth+1)
		} else {
			d.draw(k, below+"├─ ", below+"│  ", depth+1)
		}
	}
}

// WriteDOT writes the tree for Graphviz. Arrows go the way of the data; members that did not answer are dashed.
func WriteDOT(w io.Writer, set *Set, tree map[string]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph %s {\n  rankdir=TB;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n",
		quoted(set.Name))
	for _, m := range set.Members {
		label := m.Host + "\n" + strings.ToLower(m.State) + ", votes " + strconv.Itoa(m.Votes)
		if m.Hidden {
			label += ", hidden"
		}
		if m.DelaySeconds > 0 {
			label += ", delayed " + strconv.FormatInt(m.DelaySeconds, 10) + " s"
		}
		if m.LagApplied >= 0 && m.State != StatePrimary {
			label += "\nlag " + strconv.FormatFloat(m.LagApplied, 'f', 1, 64) + " s"
		}
		style := "rounded"
		if !m.Asked {
			style = "rounded,dashed"
		}
		if m.State == StatePrimary {
			style += ",bold"
		}
		fmt.Fprintf(&b, "  %s [label=%s, style=%s];\n", quoted(m.Host), quoted(label), quoted(style))
	}
	for _, m := range set.Members {
		if src := tree[m.Host]; src != "" {
			fmt.Fprintf(&b, "  %s -> %s;\n", quoted(src), quoted(m.Host))
		}
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// In pixels. A member's box has two lines of text.
const (
	boxWide, boxHigh = 190, 42
	boxGap           = 12 // between two members of a level
	levelGap         = 56 // between two levels
	pictureEdge      = 14
)

type box struct {
	member *Member
	above  *box
	depth  int
	y      float64
	below  []*box
}

// WriteSVG draws the tree from left to right. Members without a vote are grey; hidden ones have a dashed border,
// those that are down a red one.
func WriteSVG(w io.Writer, set *Set, tree map[string]string) error {
	boxes, deepest, rows := layOut(set, tree)
	width := 2*pictureEdge + (deepest+1)*boxWide + deepest*levelGap
	height := 2*pictureEdge + rows*(boxHigh+boxGap) - boxGap
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12" role="img">`+"\n",
		width, max(height, 0), width, max(height, 0))
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString("replication tree of "+set.Name))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, max(height, 0))
	for _, x := range boxes {
		x.link(&b)
	}
	for _, x := range boxes {
		x.draw(&b)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// layOut gives each leaf a row, and puts each source in the middle of its members.
func layOut(set *Set, tree map[string]string) (boxes []*box, deepest, rows int) {
	var path []*box // from the root to the last member
	for _, l := range Lines(set, tree) {
		x := &box{member: set.Member(l.Host), depth: l.Depth}
		path = path[:min(l.Depth, len(path))]
		if len(path) > 0 {
			x.above = path[len(path)-1]
			x.above.below = append(x.above.below, x)
		}
		path = append(path, x)
		boxes = append(boxes, x)
		deepest = max(deepest, l.Depth)
	}
	for _, x := range boxes {
		if len(x.below) == 0 {
			x.y = pictureEdge + float64(rows*(boxHigh+boxGap))
			rows++
		}
	}
	for i := len(boxes) - 1; i >= 0; i-- { // members below come later
		if n := len(boxes[i].below); n > 0 {
			boxes[i].y = (boxes[i].below[0].y + boxes[i].below[n-1].y) / 2
		}
	}
	return boxes, deepest, rows
}

func (x *box) left() int { return pictureEdge + x.depth*(boxWide+levelGap) }

func (x *box) link(b *strings.Builder) {
	if x.above == nil {
		return
	}
	from, to := x.above.left()+boxWide, x.left()
	y0, y1, middle := x.above.y+boxHigh/2, x.y+boxHigh/2, (from+to)/2
	fmt.Fprintf(b, `<path d="M%d %.1f C%d %.1f %d %.1f %d %.1f" fill="none" stroke="#888" stroke-width="1.5"/>`+"\n",
		from, y0, middle, y0, middle, y1, to-6, y1)
	fmt.Fprintf(b, `<path d="M%d %.1f l-7 -4 v8 z" fill="#888"/>`+"\n", to, y1)
}

func (x *box) draw(b *strings.Builder) {
	m := x.member
	fill, border, stroke, dash := "#fff", "#555", 1.0, ""
	switch {
	case m.State == StatePrimary:
		fill, border, stroke = "#dbe9ff", "#1a56b0", 2
	case m.Votes == 0:
		fill = "#eee"
	}
	if m.Hidden {
		dash = ` stroke-dasharray="5 3"`
	}
	if !m.Healthy {
		border = "#b00020"
	}
	fmt.Fprintf(b, `<rect x="%d" y="%.1f" width="%d" height="%d" rx="6" fill="%s" stroke="%s" stroke-width="%g"%s/>`+"\n",
		x.left(), x.y, boxWide, boxHigh, fill, border, stroke, dash)
	fmt.Fprintf(b, `<text x="%d" y="%.1f" font-weight="600" fill="#222">%s</text>`+"\n", x.left()+9, x.y+17,
		html.EscapeString(shortened(m.Host, 26)))
	fmt.Fprintf(b, `<text x="%d" y="%.1f" fill="#444">%s</text>`+"\n", x.left()+9, x.y+33,
		html.EscapeString(shortened(describe(m), 32)))
}

func describe(m *Member) string {
	var parts []string
	switch {
	case !m.Healthy:
		parts = append(parts, "down")
	case m.State != StateSecondary:
		parts = append(parts, strings.ToLower(m.State))
	}
	if m.Votes == 0 && !m.Arbiter {
		parts = append(parts, "no vote")
	} else if m.State == StateSecondary {
		parts = append(parts, "voter")
	}
	if m.Hidden {
		parts = append(parts, "hidden")
	}
	if m.DelaySeconds > 0 {
		parts = append(parts, "delayed "+strconv.FormatInt(m.DelaySeconds, 10)+" s")
	}
	if m.LagApplied >= 0 && m.State == StateSecondary {
		parts = append(parts, "lag "+strconv.FormatFloat(m.LagApplied, 'f', 2, 64)+" s")
	}
	return strings.Join(parts, ", ")
}

func shortened(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most/2-1]) + "…" + string(r[len(r)-most/2:])
}
