package topology

import (
	"fmt"
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

// Lines draws a tree (the source of each member, by host) of the members of a
// set: the primary first, then members that hang nowhere. A circle, which a
// set can have for a moment, is cut where it closes.
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

// WriteDOT writes the tree as a graph for Graphviz: arrows go the way of the
// data, dashed members are not asked themselves.
func WriteDOT(w io.Writer, set *Set, tree map[string]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph %s {\n  rankdir=TB;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n", quoted(set.Name))
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

// quoted is a string of the DOT language.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}
