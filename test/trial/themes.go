package trial

// Themes are all there are. Those of servers and processes stand in
// themes_faults.go.
func Themes() []Theme {
	return faultThemes()
}
