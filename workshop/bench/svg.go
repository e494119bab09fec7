package bench

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/workshop/plot"
)

// WriteSVG draws the contenders of one case by its name, with a curve that
// figure over time; without a name, millrace's share of the ceiling in each case
// that has one.
func WriteSVG(w io.Writer, r *Report, name, curve string) error {
	var s plot.Sheet
	if err := r.draw(&s, name, curve); err != nil {
		return err
	}
	if len(s.Charts) == 0 {
		return cmp.Or(s.Err, fmt.Errorf("the report has no figures to draw for %q", name))
	}
	_, err := io.WriteString(w, string(s.Charts[0].SVG))
	return err
}

func (r *Report) draw(s *plot.Sheet, name, curve string) error {
	if name == "" && curve == "" {
		r.shares(s)
		return nil
	}
	var names []string
	for i := range r.Cases {
		c := &r.Cases[i]
		switch {
		case c.Name() != name:
			names = append(names, c.Name())
		case curve != "":
			return c.curve(s, curve)
		default:
			c.bars(s)
			return nil
		}
	}
	return fmt.Errorf("the report has no case %q; it has %s", name, strings.Join(names, ", "))
}

// shares draws how much of the ceiling millrace reaches, case by case.
func (r *Report) shares(s *plot.Sheet) {
	var bars []plot.Bar
	for i := range r.Cases {
		for _, x := range r.Cases[i].Contenders {
			if x.Kind == KindMillrace && x.OfCeiling.Median > 0 {
				bars = append(bars, plot.Bar{Name: r.Cases[i].Name(), Value: x.OfCeiling.Median})
				break
			}
		}
	}
	s.Bars("of the ceiling", bars)
}

// Join puts the cases of several reports of the same machine and scale into
// the first, so that they can be shown together.
func Join(reports []*Report) (*Report, error) {
	all := *reports[0]
	for _, r := range reports[1:] {
		if r.Machine != all.Machine || r.Scale != all.Scale {
			return nil, fmt.Errorf("the reports are not of one machine and scale: %s, %s; %s, %s", all.Machine, all.Scale.Name, r.Machine, r.Scale.Name)
		}
		all.Cases = append(all.Cases, r.Cases...)
		all.Rounds = min(all.Rounds, r.Rounds)
	}
	return &all, nil
}
