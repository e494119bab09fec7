package main

import (
	"reflect"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/millrace/millrace/internal/cli"
)

// grid is a table whose cells are plain.
type grid struct{ table.Writer }

func (g grid) AppendRow(row table.Row, config ...table.RowConfig) {
	g.Writer.AppendRow(plainRow(row), config...)
}

func (g grid) AppendHeader(row table.Row, config ...table.RowConfig) {
	g.Writer.AppendHeader(plainRow(row), config...)
}

func (g grid) AppendRows(rows []table.Row, config ...table.RowConfig) {
	for _, row := range rows {
		g.AppendRow(row, config...)
	}
}

func plainRow(row table.Row) table.Row {
	out := make(table.Row, len(row))
	for i, cell := range row {
		out[i] = cell
		if v := reflect.ValueOf(cell); v.Kind() == reflect.String {
			out[i] = cli.Plain(v.String())
		}
	}
	return out
}
