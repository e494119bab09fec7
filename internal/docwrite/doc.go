// Package docwrite writes documents exactly: it frames write commands, sends them, reads the answers,
// and classifies write errors. The copy and the sink for MongoDB share it. It decides neither when
// something is sent nor what happens to a refused document, and knows no job and no dead letter.
package docwrite
