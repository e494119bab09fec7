package ycsb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/plot"
)

// The clients of a matrix.
const (
	clientMillrace = "millrace"
	clientJava     = "ycsb"
)

// client does a phase of a workload.
type client interface {
	do(ctx context.Context, phase Phase, p Properties) (*Report, error)
}

// own is the client that millrace is.
type own struct {
	seed  uint64
	noise []byte
}

func (c own) do(ctx context.Context, phase Phase, p Properties) (*Report, error) {
	return Execute(ctx, Options{Phase: phase, Seed: c.seed, Noise: c.noise, Properties: p})
}

// side is one server with one client.
type side struct {
	server Server
	name   string // of the client
	client client
	props  Properties
	config *config
	// slowed are the servers whose disks this process slows: what that costs is
	// not the client's.
	slowed []Server

	began  time.Time
	load   *Report
	rounds map[string][]*Report
}

// sides are all servers with all clients, those of one server in a row.
func (o *MatrixOptions) sides() (all []*side, err error) {
	servers := o.Servers
	if len(servers) == 0 {
		servers = []Server{{}}
	}
	mine := own{o.Seed, NewNoise()}
	for _, server := range servers {
		p := o.Properties.With()
		if server.URI != "" {
			p["mongodb.url"] = server.URI
		}
		c, err := parse(p, Run)
		if err != nil {
			return nil, err
		}
		// So that both clients, and two connection strings, mean one database.
		if p["mongodb.url"], err = withDatabase(c.url, c.database); err != nil {
			return nil, err
		}
		s := &side{server: server, name: clientMillrace, client: mine, props: p, config: c, slowed: servers, rounds: map[string][]*Report{}, began: time.Now()}
		all = append(all, s)
		if o.Peer != nil {
			beside := *s
			beside.name, beside.client, beside.rounds = clientJava, o.Peer, map[string][]*Report{}
			all = append(all, &beside)
		}
	}
	return all, nil
}

// withDatabase is a connection string with a database in its path.
func withDatabase(uri, database string) (string, error) {
	scheme, rest, ok := strings.Cut(uri, "://")
	if !ok {
		return "", fmt.Errorf("%w: mongodb.url is no connection string", ErrProperties)
	}
	hosts, options, _ := strings.Cut(rest, "?")
	hosts, _, _ = strings.Cut(hosts, "/")
	uri = scheme + "://" + hosts + "/" + url.PathEscape(database)
	if options != "" {
		uri += "?" + options
	}
	return uri, nil
}

func (s *side) explain(err error) error {
	if s.server.Name == "" && s.name == clientMillrace {
		return err
	}
	return fmt.Errorf("%s, by %s: %w", cmp.Or(s.server.Name, "the server"), s.name, err)
}

// do does a phase and notes what the disk was asked for meanwhile.
func (s *side) do(ctx context.Context, phase Phase, p Properties) (*Report, error) {
	before, cost := s.use(), s.slowing()
	rep, err := s.client.do(ctx, phase, p)
	if rep == nil {
		return nil, err
	}
	if s.server.disk != nil {
		used := s.use().Minus(before)
		rep.disk = &used
	}
	if s.name == clientMillrace {
		rep.Client.CPUSeconds -= (s.slowing() - cost).Seconds()
		rep.Client.CPUEach = rep.Client.CPUSeconds * 1e6 / float64(max(rep.Operations, 1))
	}
	if err == nil && rep.Interrupted {
		err = context.Cause(ctx)
	}
	return rep, err
}

func (s *side) use() (u lab.DiskUse) {
	if s.server.disk != nil {
		u = s.server.disk()
	}
	return u
}

// slowing is the processor time that slowed disks have cost this process.
func (s *side) slowing() (d time.Duration) {
	for _, server := range s.slowed {
		if server.disk != nil {
			d += server.disk().CPU
		}
	}
	return d
}

// collection does something with the collection of the side's table.
func (s *side) collection(ctx context.Context, table string, do func(*driver.Collection) error) error {
	cluster, err := mongo.Connect(ctx, s.props["mongodb.url"], mongo.Options{AppName: "millrace ycsb"})
	if err != nil {
		return err
	}
	defer cluster.Close()
	return do(cluster.Client.Database(s.config.database).Collection(table))
}

func (s *side) count(ctx context.Context, table string) (n int64, err error) {
	err = s.collection(ctx, table, func(c *driver.Collection) error {
		n, err = c.CountDocuments(ctx, bson.D{})
		return mongo.Wrap(err, "count %s.%s", s.config.database, table)
	})
	return n, err
}

// fill loads the records unless they are there.
func (s *side) fill(ctx context.Context, o *MatrixOptions) error {
	if s.name != clientMillrace {
		return s.fillBeside(ctx, o)
	}
	n, err := s.count(ctx, s.config.table)
	if err != nil || n >= s.config.records {
		return err
	}
	o.Progress(fmt.Sprintf("%s%s.%s has %d of %d records: loading", prefix(s.server.Name), s.config.database, s.config.table, n, s.config.records))
	p := s.loading(o, s.config.table)
	if o.Operations == 0 || n > 0 {
		p = p.With("threadcount", "8", "batchsize", "100", "mongodb.upsert", strconv.FormatBool(n > 0))
	}
	rep, err := s.do(ctx, Load, p)
	if o.Operations > 0 && n == 0 {
		s.load = rep
	}
	return err
}

func prefix(name string) string {
	if name == "" {
		return ""
	}
	return name + ": "
}

// loading are the properties of a load that is measured.
func (s *side) loading(o *MatrixOptions, table string) Properties {
	return s.props.With("table", table, "threadcount", strconv.Itoa(o.Threads[0]), "target", "0", "maxexecutiontime", "0")
}

// fillBeside has the peer load records of its own, where the load is measured,
// looks whether they are the same, and drops them: it works on those that
// millrace has loaded.
func (s *side) fillBeside(ctx context.Context, o *MatrixOptions) error {
	if o.Operations == 0 {
		return nil
	}
	table := s.config.table + "_by_" + s.name
	if n, err := s.count(ctx, table); err != nil || n > 0 {
		return cmp.Or(err, mongo.WithHint(fmt.Errorf("there is a collection %s.%s already", s.config.database, table), "the peer loads into it; drop it if it is of no use"))
	}
	o.Progress(fmt.Sprintf("%s%s loads %d records into %s.%s", prefix(s.server.Name), s.name, s.config.records, s.config.database, table))
	rep, err := s.do(ctx, Load, s.loading(o, table))
	return errors.Join(err, s.collection(context.WithoutCancel(ctx), table, func(c *driver.Collection) error {
		var wrong error
		if err == nil {
			s.load, wrong = rep, s.sameKeys(ctx, c)
		}
		return errors.Join(wrong, c.Drop(context.WithoutCancel(ctx)))
	}))
}

// sameKeys looks for keys from all over the records among those that the peer
// has loaded.
func (s *side) sameKeys(ctx context.Context, c *driver.Collection) error {
	const sample = 1000
	first, n := s.config.insertStart, s.config.insertCount
	var ids bson.A
	for i := range min(n, sample) {
		ids = append(ids, string(s.config.keys.append(nil, first+i*n/min(n, sample))))
	}
	found, err := c.CountDocuments(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
	if err != nil {
		return fmt.Errorf("look for the peer's records: %w", err)
	}
	all, err := c.CountDocuments(ctx, bson.D{})
	if err == nil && (found != int64(len(ids)) || all != n) {
		err = fmt.Errorf("%s has loaded %d records, with %d of %d keys that were looked for; want %d with the same keys", s.name, all, found, len(ids), n)
	}
	return err
}

// cell measures one mix with one number of threads.
func (s *side) cell(ctx context.Context, o *MatrixOptions, mix Mix, threads int, each time.Duration) (*Report, error) {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	p := s.props.With("readproportion", f(mix.Read), "updateproportion", f(mix.Write), "insertproportion", "0", "scanproportion", "0", "readmodifywriteproportion", "0",
		"threadcount", strconv.Itoa(threads), "operationcount", strconv.FormatInt(o.Operations, 10), "maxexecutiontime", "0")
	if each > 0 {
		p = p.With("operationcount", "0", "maxexecutiontime", strconv.Itoa(int(max(each.Round(time.Second), time.Second)/time.Second)))
	}
	rep, err := s.do(ctx, Run, p)
	if err != nil {
		return nil, fmt.Errorf("mix %s, %d threads: %w", mix, threads, err)
	}
	if rep.Operations == 0 || rep.Failed >= rep.Operations {
		return nil, fmt.Errorf("mix %s, %d threads: all operations failed, the first with: %w", mix, threads, errors.New(cmp.Or(rep.FirstError, "nothing was said of it")))
	}
	return rep, nil
}

// measure measures a cell of one round.
func (s *side) measure(ctx context.Context, o *MatrixOptions, round int, mix Mix, threads int) error {
	each := o.Each
	if o.Operations > 0 {
		each = 0
	}
	rep, err := s.cell(ctx, o, mix, threads, each)
	if err != nil {
		return err
	}
	key := cellKey(mix, threads)
	s.rounds[key] = append(s.rounds[key], rep)
	one, who := cellOf(mix, threads, []*Report{rep}), prefix(s.server.Name)
	if s.name != clientMillrace {
		who = prefix(strings.TrimSpace(s.server.Name + " by " + s.name))
	}
	o.Progress(fmt.Sprintf("%sround %d, %s, %s: %s operations/s, RAL %s µs, WAL %s µs", who, round+1, several(int64(threads), "thread"), mix,
		plot.Figure(one.Throughput), figureOr(one.RAL, "-"), figureOr(one.WAL, "-")))
	return nil
}

func cellKey(mix Mix, threads int) string { return fmt.Sprint(mix, "/", threads) }

// matrix is what was measured.
func (s *side) matrix(o *MatrixOptions) *Matrix {
	m := &Matrix{Name: s.server.Name, Client: s.name, Address: mongo.Redact(s.config.url), Database: s.config.database, Collection: s.config.table,
		Distribution: s.config.requests, Records: s.config.records, Started: s.began, Operations: o.Operations, Rounds: o.Rounds, ReadPreference: "primary"}
	if o.Operations == 0 {
		m.EachSeconds = o.Each.Seconds()
	}
	if c := s.config.concern; c != nil && c.W != nil {
		m.WriteConcern = fmt.Sprint(c.W)
	}
	if s.config.read != nil {
		m.ReadPreference = s.config.read.Mode().String()
	}
	if s.load != nil {
		load := cellOf(Mix{}, o.Threads[0], []*Report{s.load})
		m.Load = &load
	}
	for _, threads := range o.Threads {
		for _, mix := range o.Mixes {
			m.Cells = append(m.Cells, cellOf(mix, threads, s.rounds[cellKey(mix, threads)]))
		}
	}
	return m
}
