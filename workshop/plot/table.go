package plot

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Table is a table for a terminal, of which all columns but the first few stand at the right.
func Table(header []string, rows [][]string, left int) string {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	var columns []table.ColumnConfig
	for i := left; i < len(header); i++ {
		columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	t.AppendHeader(line(header))
	for _, r := range rows {
		t.AppendRow(line(r))
	}
	return t.Render()
}

func line(cells []string) table.Row {
	row := table.Row{}
	for _, c := range cells {
		row = append(row, c)
	}
	return row
}
