package trial

import "slices"

// Themes are all there are.
func Themes() []Theme {
	return slices.Concat(faultThemes(), mixedThemes(), dataThemes(), commandThemes())
}
