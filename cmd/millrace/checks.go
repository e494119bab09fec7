package main

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/millrace/millrace/internal/precheck"
)

// checksTable shows the checks of a plan.
func checksTable(l precheck.List) string {
	t := newTable("check", "result", "what", "hint")
	for _, c := range l {
		t.AppendRow(table.Row{c.Name, c.Level, plain(c.Message), plain(c.Hint)})
	}
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 3, WidthMax: 60, WidthMaxEnforcer: text.WrapSoft},
		{Number: 4, WidthMax: 50, WidthMaxEnforcer: text.WrapSoft},
	})
	return t.Render()
}

// checksFailed is the error of a dry run, which has shown the checks.
func checksFailed(l precheck.List) error {
	if n := len(l.Of(precheck.Fail)); n > 0 {
		return withCode(exitUsage, fmt.Errorf("%s failed; nothing was written", plural(n, "check")))
	}
	return nil
}

// precheckError is the error of a command that does not begin.
func precheckError(l precheck.List) error {
	return withCode(exitUsage, fmt.Errorf("nothing was written: %w", l.Err()))
}
