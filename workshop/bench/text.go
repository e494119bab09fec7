package bench

import (
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/plot"
	load "github.com/millrace/millrace/workshop/ycsb"
)

func itoa(n int) string { return strconv.Itoa(n) }

func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', 0, 64) + " %" }

// figure writes a number with three digits, or as a whole number.
func figure(n float64) string { return plot.Figure(n) }

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string { return humanize.Comma(n) }

// mix is a bijection of 64-bit numbers that looks random.
func mix(x uint64) uint64 { return load.Scatter(x) }

// newNoise is the block of random bytes that contents are cut out of.
func newNoise() []byte { return load.NewNoise() }
