package bench

import (
	"strconv"
)

func itoa(n int) string { return strconv.Itoa(n) }

func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', 0, 64) + " %" }
