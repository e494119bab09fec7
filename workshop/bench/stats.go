package bench

import (
	"math"
	"slices"
)

// Stat is a figure over the rounds: its median and its extremes.
type Stat struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// StatOf is the median and the extremes of values, all zero for none.
func StatOf(values []float64) Stat {
	if len(values) == 0 {
		return Stat{}
	}
	return Stat{Median: median(values), Min: slices.Min(values), Max: slices.Max(values)}
}

// Spread is the distance of the extremes as a part of the median.
func (s Stat) Spread() float64 {
	if s.Median == 0 {
		return 0
	}
	return (s.Max - s.Min) / math.Abs(s.Median)
}

// median is the middle value, the mean of the middle two of an even number,
// and 0 of none.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// percentile is the smallest value that p of all (0 to 1) do not exceed: the
// nearest rank.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(p*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// slope is the growth of y per unit of x by least squares, 0 when it has none.
func slope(x, y []float64) float64 {
	n := float64(min(len(x), len(y)))
	if n < 2 {
		return 0
	}
	var sx, sy, sxx, sxy float64
	for i := range int(n) {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	d := n*sxx - sx*sx
	if d == 0 {
		return 0
	}
	return (n*sxy - sx*sy) / d
}
