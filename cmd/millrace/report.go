package main

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/verify"
)

// summary is the result of a sync, for --output json and --report.
type summary struct {
	Version   string         `json:"version"`
	Finalized bool           `json:"finalized"`
	Already   bool           `json:"alreadyFinalized,omitempty"` // before this command, which did nothing
	Started   time.Time      `json:"started"`
	Ended     time.Time      `json:"ended"`
	Seconds   float64        `json:"seconds"`
	Stopped   string         `json:"stopped,omitempty"` // by which signal
	Status    job.Status     `json:"status"`
	Plan      *job.Plan      `json:"plan,omitempty"`
	Verify    *verify.Report `json:"verify,omitempty"`
}

// maxListed limits lists in text output; JSON has all items.
const maxListed = 20

// listed returns lines for the first maxListed items, and one with the number of others.
func listed(what string, items []string) (lines []string) {
	for _, one := range first(maxListed, items).([]string) {
		lines = append(lines, what+one)
	}
	if n := more(maxListed, items); n > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", n))
	}
	return lines
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// checksFailed is the error of a dry run, which has shown the checks.
func checksFailed(l precheck.List) error {
	if n := len(l.Of(precheck.Fail)); n > 0 {
		return cli.WithCode(cli.ExitUsage, fmt.Errorf("%s failed; nothing was written", plural(n, "check")))
	}
	return nil
}

func precheckError(l precheck.List) error { return mongo.Wrap(l.Err(), "nothing was written") }

func ofAll(n, all int) string {
	if n == all {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d of %d", n, all)
}
