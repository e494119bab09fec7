// Package suggest guesses which name was meant by one that is mistyped.
package suggest

import "slices"

// Name finds the known name that the given one most likely means, or "".
func Name(given string, known []string) (best string) {
	distance := len(given)/3 + 2
	for _, name := range slices.Sorted(slices.Values(known)) {
		if max(len(given)-len(name), len(name)-len(given)) >= distance {
			continue // nor can the names be nearer
		}
		if d := editDistance(given, name); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// editDistance is Levenshtein's.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left, above := i+1, i // for the empty part of b
		for j := range len(b) {
			same := above
			if a[i] != b[j] {
				same++
			}
			above = row[j+1]
			row[j], left = left, min(same, above+1, left+1)
		}
		row[len(b)] = left
	}
	return row[len(b)]
}
