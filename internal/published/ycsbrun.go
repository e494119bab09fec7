package published

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/ycsb"
)

// ycsbRun measures the second table: the mixes on a set of three members.
type ycsbRun struct{}

const (
	paperRecords    = 1_000_000
	paperOperations = 5_000_000
	paperThreads    = 8
	// mediumTenth is how much smaller medium is than published.
	mediumTenth = 10
)

// Measure loads the records and runs the mixes, round after round.
func (d ycsbRun) Measure(ctx context.Context, o Options, m *Measured) (err error) {
	records := max(int(paperRecords/mediumTenth*o.Scale.Factor), 100)
	each := max(o.Scale.Duration/3, time.Second).Round(time.Second)
	m.Sizes = fmt.Sprintf("%s records (1:%s of the published), each mix for %s in place of 5,000,000 operations; %d threads as published",
		humanize.Comma(int64(records)), ratioTo(paperRecords, records), each, paperThreads)
	for _, c := range ycsbClassList() {
		for _, mix := range ycsbClassMixes() {
			m.miss("lab classes are not there yet", key(c.key(mix), "local"), key(c.key(mix), "network"))
		}
	}
	o.Progress("starting servers")
	servers, err := lab.Start(ctx, lab.Options{Version: o.Mongod, Topology: "rs:3"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Stop()) }()
	url := strings.Replace(servers.URI(), "/?", "/ycsb?", 1)
	for range o.Rounds {
		if err := d.round(ctx, o, m, ycsb.Properties{"mongodb.url": url, "recordcount": strconv.Itoa(records), "requestdistribution": "zipfian"}, each); err != nil {
			return err
		}
	}
	return nil
}

// round measures each mix once.
func (ycsbRun) round(ctx context.Context, o Options, m *Measured, p ycsb.Properties, each time.Duration) error {
	options := ycsb.MatrixOptions{Properties: p, Threads: []int{paperThreads}, Each: each, Rounds: 1, Progress: o.Progress}
	for _, text := range ycsbMixes() {
		mix, err := ycsb.ParseMix(text)
		if err != nil {
			return err
		}
		options.Mixes = append(options.Mixes, mix)
	}
	matrix, err := ycsb.RunMatrix(ctx, options)
	if err != nil {
		return err
	}
	for _, c := range matrix.Cells {
		k, client := key("mix", c.Mix.String()), key("client", c.Mix.String())
		m.add(key(k, "rate"), c.Throughput)
		m.add(key(k, "ral"), c.RAL)
		m.add(key(k, "wal"), c.WAL)
		m.add(key(client, "millrace"), c.Throughput)
		m.add(key(client, "millrace-cpu"), c.ClientCPU)
		m.miss("no --peer ycsb=… was given", key(client, "java"), key(client, "java-cpu"))
	}
	return nil
}
