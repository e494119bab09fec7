// Package published holds what others have published of their tools, table by
// table, measures what this machine gives for it, and writes the page that
// shows both side by side.
//
// The published figures are data here, or in the package that measures itself
// against them. A cell that was not published is missing: nobody guesses it. What
// was measured comes from runs only and is kept as a JSON document, from which the
// page can be written again at any time. The measurements themselves are those of
// packages bench and ycsb; each table has one file that asks them for its figures.
package published
