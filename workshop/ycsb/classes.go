package ycsb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/plot"
)

// Class is a size of server by its parts, processors to memory. What memory
// means here is the cache: in 1:8 it has room for one and a half times the
// records, in 1:4 for half of that, in 1:2 for a quarter.
type Class struct {
	Name  string  `json:"name"`
	share float64 // of the records that the cache has room for
}

// ParseClass reads 1:2, 1:4 or 1:8.
func ParseClass(s string) (Class, error) {
	for name, share := range map[string]float64{"1:2": 0.375, "1:4": 0.75, "1:8": 1.5} {
		if s == name {
			return Class{name, share}, nil
		}
	}
	return Class{}, fmt.Errorf("class %q: want 1:2, 1:4 or 1:8, processors to memory", s)
}

// cacheGB is the cache of the class for so many bytes of records.
func (c Class) cacheGB(bytes int64) float64 {
	const least = 32.0 / 1024 // with less the server does little but evict
	return max(c.share*float64(bytes)/(1<<30), least)
}

// Disk is a kind of disk by name.
type Disk struct {
	Name  string        `json:"name"`
	Speed lab.DiskSpeed `json:"speed"`
}

// ParseDisk reads NAME=LATENCY[:OPERATIONS A SECOND]; see [lab.ParseDiskSpeed].
func ParseDisk(s string) (Disk, error) {
	name, speed, ok := strings.Cut(s, "=")
	if !ok || name == "" {
		return Disk{}, fmt.Errorf("disk %q: want NAME=SPEED, such as network=500us:4000", s)
	}
	d, err := lab.ParseDiskSpeed(speed)
	return Disk{name, d}, err
}

// ClassOptions describe a comparison of disks over classes of servers.
type ClassOptions struct {
	// Matrix is measured in each class; its Servers are made here.
	Matrix  MatrixOptions
	Classes []Class
	// Disks are compared with the first of them, each with a server of its own.
	Disks []Disk
	// Cores that each server may use, which may be a part of one; 0 is all.
	Cores float64
	// Versions of mongod, one for all disks or one for each; none is 6.0.
	Versions []string
	Log      *slog.Logger // may be nil
}

// Classes are what was measured in each class.
type Classes struct {
	Cores   float64       `json:"cores"` // 0 is all
	Disks   []Disk        `json:"disks"`
	Servers []string      `json:"mongod"` // versions, by disk
	Classes []ClassResult `json:"classes"`
}

// ClassResult is one class.
type ClassResult struct {
	Class
	CacheGB float64 `json:"cacheGB"`
	// RecordsGB is how much the records' fields are, without the index.
	RecordsGB float64 `json:"recordsGB"`
	*Comparison
}

// RunClasses starts a server for each disk, one class after the other, measures
// the matrix on both and ends them.
func RunClasses(ctx context.Context, o ClassOptions) (*Classes, error) {
	if len(o.Versions) == 0 {
		o.Versions = []string{"6.0"}
	}
	if len(o.Versions) == 1 {
		o.Versions = slices.Repeat(o.Versions, len(o.Disks))
	}
	if len(o.Disks) < 1 || len(o.Versions) != len(o.Disks) || len(o.Classes) == 0 {
		return nil, fmt.Errorf("%w: want a class and a disk at least, and a version for each disk or one for all", ErrProperties)
	}
	c, err := parse(o.Matrix.Properties, Load)
	if err != nil {
		return nil, err
	}
	const perField, perRecord = 14, 36 // names, lengths and types in BSON; the key
	bytes := c.records * (int64(len(c.fields))*(c.longestField+perField) + perRecord)
	all := &Classes{Cores: o.Cores, Disks: o.Disks, Servers: o.Versions}
	for _, class := range o.Classes {
		r := ClassResult{Class: class, CacheGB: class.cacheGB(bytes), RecordsGB: float64(bytes) / (1 << 30)}
		if r.Comparison, err = o.run(ctx, r); err != nil {
			return nil, fmt.Errorf("class %s: %w", class.Name, err)
		}
		all.Classes = append(all.Classes, r)
	}
	return all, nil
}

// run measures one class.
func (o ClassOptions) run(ctx context.Context, r ClassResult) (c *Comparison, err error) {
	m := o.Matrix
	m.Servers = nil
	for i, d := range o.Disks {
		cluster, failed := lab.Start(ctx, lab.Options{Version: o.Versions[i], CacheGB: r.CacheGB, Cores: o.Cores, DiskSpeed: d.Speed, Logger: o.Log})
		if failed != nil {
			return nil, explainClass(failed)
		}
		defer func() { err = errors.Join(err, cluster.Stop()) }()
		member := cluster.Members()[0]
		server := Server{Name: d.Name, URI: strings.Replace(cluster.URI(), "/?", "/"+defaultDatabase+"?w=1&", 1)}
		if d.Speed.Slow() {
			server.disk = member.DiskUse
		}
		m.Servers = append(m.Servers, server)
	}
	if told := m.Progress; told != nil {
		m.Progress = func(line string) { told("class " + r.Name + ", " + line) }
	}
	return RunMatrix(ctx, m)
}

func explainClass(err error) error {
	switch {
	case errors.Is(err, lab.ErrNoQuota):
		return mongo.WithHint(err, "--cores 0 lets servers use all processors")
	case errors.Is(err, lab.ErrNoSlowDisk):
		return mongo.WithHint(err, "a speed of 0 leaves a disk as it is, such as --disk local=0")
	}
	return err
}

func (c *Classes) facts() []string {
	cores := "all processors"
	if c.Cores > 0 {
		cores = "at most " + plot.Figure(c.Cores) + " processors"
	}
	facts := []string{"one member a server, on this machine; " + cores + " each"}
	for i, d := range c.Disks {
		facts = append(facts, fmt.Sprintf("%s: mongod %s, disk %s", d.Name, c.Servers[i], d.Speed))
	}
	for _, r := range c.Classes {
		fact := fmt.Sprintf("class %s: cache of %s GB for records of %s GB", r.Name, plot.Figure(r.CacheGB), plot.Figure(r.RecordsGB))
		if r.share < 1 && r.CacheGB > r.RecordsGB {
			fact += ", which is the least: too few records for this class"
		}
		facts = append(facts, fact)
	}
	return append(facts, "a slowed disk has each read, write and flush take a turn and wait, with no page cache before it")
}

// summary is each other disk against the first, over all classes.
func (c *Classes) summary() sheetTable {
	t := sheetTable{Title: "differences over the classes", Header: []string{"class", "other", "base", "threads", "read:write", "throughput", "RAL", "WAL"}}
	for _, r := range c.Classes {
		for _, d := range r.Differences {
			for _, x := range d.Cells {
				one := Cell{Mix: x.Mix}
				t.Rows = append(t.Rows, []string{r.Name, d.Other, d.Base, fmt.Sprint(x.Threads), one.name(), percentText(x.Throughput), percentText(x.RAL), percentText(x.WAL)})
			}
		}
	}
	return t
}

// tables are those of all classes, and the summary.
func (c *Classes) tables() (all []sheetTable) {
	for _, r := range c.Classes {
		t := r.figures()
		t.Title = "class " + r.Name
		all = append(all, t)
	}
	return append(all, c.summary())
}

// WriteText writes the tables for a terminal.
func (c *Classes) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintln(w, strings.Join(c.facts(), "\n")); err != nil {
		return err
	}
	return writeTables(w, c.tables())
}

// WriteHTML writes the tables and their charts as one page.
func (c *Classes) WriteHTML(w io.Writer) error {
	s := &sheet{Title: "millrace-bench ycsb matrix --classes", Facts: c.facts(), Tables: c.tables()}
	var against []plot.Line
	names := c.Classes[0].mixes()
	for _, r := range c.Classes {
		first := len(s.Charts)
		r.charts(s)
		for i := range s.Charts[first:] {
			s.Charts[first+i].Title = "class " + r.Name + ": " + s.Charts[first+i].Title
		}
		for _, l := range againstLines(r.Differences, names) {
			l.Name = r.Name + ": " + l.Name
			against = append(against, l)
		}
	}
	s.drawAgainst("all classes: operations a second, in % of the base", against, names)
	return s.write(w)
}
