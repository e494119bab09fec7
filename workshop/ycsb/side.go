package ycsb

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/plot"
)

// The clients of a matrix.
const (
	clientMillrace = "millrace"
	clientJava     = "ycsb"
)

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

type side struct {
	server Server
	name   string // of the client
	client client
	props  Properties
	config *config

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
		s := &side{server: server, name: clientMillrace, client: mine, props: p, config: c,
			rounds: map[string][]*Report{}, began: time.Now()}
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
		return "", fmt.Errorf("%w: mongodb.url is not a connection string", ErrProperties)
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

// do does a phase; being cut off is an error.
func (s *side) do(ctx context.Context, phase Phase, p Properties) (*Report, error) {
	rep, err := s.client.do(ctx, phase, p)
	if rep == nil {
		return nil, err
	}
	if err == nil && rep.Interrupted {
		err = context.Cause(ctx)
	}
	return rep, err
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

func (s *side) fill(ctx context.Context, o *MatrixOptions) error {
	if s.name != clientMillrace {
		return s.fillBeside(ctx, o)
	}
	n, err := s.count(ctx, s.config.table)
	if err != nil || n >= s.config.records {
		return err
	}
	o.Progress(fmt.Sprintf("%s%s.%s has %d of %d records: loading", prefix(s.server.Name), s.config.database,
		s.config.table, n, s.config.records))
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

// fillBeside has the peer load its own records where the load is measured, checks their keys, and drops them.
func (s *side) fillBeside(ctx context.Context, o *MatrixOptions) error {
	if o.Operations == 0 {
		return nil
	}
	table := s.config.table + "_by_" + s.name
	if n, err := s.count(ctx, table); err != nil || n > 0 {
		return cmp.Or(err, mongo.WithHint(fmt.Errorf("there is a collection %s.%s already", s.config.database, table),
			"the peer loads into it; drop it if it is of no use"))
	}
	o.Progress(fmt.Sprintf("%s%s loads %d records into %s.%s", prefix(s.server.Name), s.name, s.config.records,
		s.config.database, table))
	rep, err := s.do(ctx, Load, s.loading(o, table))
	return errors.Join(err, s.collection(context.WithoutCancel(ctx), table, func(c *driver.Collection) error {
		var wrong error
		if err == nil {
			s.load, wrong = rep, s.sameKeys(ctx, c)
		}
		return errors.Join(wrong, c.Drop(context.WithoutCancel(ctx)))
	}))
}

// sameKeys looks for keys from all over the records among those that the peer has loaded.
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
		err = fmt.Errorf("%s has loaded %d records, with %d of %d keys that were looked for; want %d with the same keys",
			s.name, all, found, len(ids), n)
	}
	return err
}

func (s *side) cell(ctx context.Context, o *MatrixOptions, mix Mix, threads int, each time.Duration) (*Report, error) {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	p := s.props.With("readproportion", f(mix.Read), "updateproportion", f(mix.Write), "insertproportion", "0",
		"scanproportion", "0", "readmodifywriteproportion", "0",
		"threadcount", strconv.Itoa(threads), "operationcount", strconv.FormatInt(o.Operations, 10), "maxexecutiontime", "0")
	if each > 0 {
		p = p.With("operationcount", "0", "maxexecutiontime",
			strconv.Itoa(int(max(each.Round(time.Second), time.Second)/time.Second)))
	}
	rep, err := s.do(ctx, Run, p)
	if err != nil {
		return nil, fmt.Errorf("mix %s, %d threads: %w", mix, threads, err)
	}
	if rep.Operations == 0 || rep.Failed >= rep.Operations {
		return nil, fmt.Errorf("mix %s, %d threads: all operations failed, the first with: %w", mix, threads,
			errors.New(cmp.Or(rep.FirstError, "nothing was said of it")))
	}
	return rep, nil
}

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
	o.Progress(fmt.Sprintf("%sround %d, %s, %s: %s operations/s, RAL %s µs, WAL %s µs", who, round+1,
		plot.Several(int64(threads), "thread"), mix,
		plot.Figure(one.Throughput), figureOr(one.RAL, "-"), figureOr(one.WAL, "-")))
	return nil
}

func cellKey(mix Mix, threads int) string { return fmt.Sprint(mix, "/", threads) }

func (s *side) matrix(o *MatrixOptions) *Matrix {
	m := &Matrix{Name: s.server.Name, Client: s.name, Address: mongo.Redact(s.config.url), Database: s.config.database,
		Collection:   s.config.table,
		Distribution: s.config.requests, Records: s.config.records, Started: s.began, Operations: o.Operations,
		Rounds: o.Rounds}
	if o.Operations == 0 {
		m.EachSeconds = o.Each.Seconds()
	}
	m.WriteConcern, m.ReadPreference = s.config.asked()
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

// Peer is the Java tool, which drives the same load beside millrace.
type Peer struct {
	command []string // up to the phase
	java    bool     // java says that the tool's class is started and not its script.
}

// ParsePeer reads ycsb=path: a directory as shipped (lib, mongodb-binding/lib), one jar, or the script bin/ycsb.
func ParsePeer(s string) (*Peer, error) {
	name, path, ok := strings.Cut(s, "=")
	if !ok || name != clientJava || path == "" {
		return nil, fmt.Errorf("peer %q: want ycsb=PATH, a directory, a jar or a script of YCSB", s)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("peer ycsb: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("peer ycsb: %w", err)
	}
	if !info.IsDir() && filepath.Ext(path) != ".jar" {
		if _, err := exec.LookPath(path); err != nil {
			return nil, fmt.Errorf("peer ycsb: %w", err)
		}
		return &Peer{command: []string{path}}, nil
	}
	classes := []string{path}
	if info.IsDir() {
		if classes, err = jars(path); err != nil {
			return nil, err
		}
	}
	if _, err := exec.LookPath("java"); err != nil {
		return nil, mongo.WithHint(fmt.Errorf("peer ycsb: %w", err), "it takes java in PATH")
	}
	return &Peer{command: []string{"java", "-cp", strings.Join(classes, string(filepath.ListSeparator)),
		"site.ycsb.Client"}, java: true}, nil
}

// jars are those of the tool and its binding, as places of a class path.
func jars(dir string) (classes []string, err error) {
	for _, sub := range []string{"", "lib", "mongodb-binding/lib"} {
		if found, err := filepath.Glob(filepath.Join(dir, sub, "*.jar")); err == nil && len(found) > 0 {
			classes = append(classes, filepath.Join(dir, sub, "*"))
		}
	}
	if len(classes) == 0 {
		return nil, mongo.WithHint(fmt.Errorf("peer ycsb: no jars in %s", dir),
			"name the directory that has lib and mongodb-binding, or a jar")
	}
	return classes, nil
}

// do runs the tool and reads what it has measured.
func (p *Peer) do(ctx context.Context, phase Phase, props Properties) (rep *Report, err error) {
	c, err := parse(props, phase)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "millrace-ycsb-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the peer: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// A file, as others see the arguments of a program, and passwords in them.
	file := filepath.Join(dir, "properties")
	if err := os.WriteFile(file, props.javaFile(), 0o600); err != nil {
		return nil, fmt.Errorf("write the peer's properties: %w", err)
	}
	cmd := spawn.CommandContext(ctx, p.command[0], append(slices.Clone(p.command[1:]), p.arguments(phase, file)...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = dir
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	began := time.Now()
	child, err := lab.StartChild(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.command[0], err)
	}
	if err := child.Wait(); err != nil {
		return nil, fmt.Errorf("ycsb ended: %w; it said: %s", cmp.Or(context.Cause(ctx), err),
			lastOf(said.String()+out.String()))
	}
	rep, err = readLines(out.String())
	if err != nil {
		return nil, fmt.Errorf("read what ycsb has measured: %w; it said: %s", err, lastOf(said.String()+out.String()))
	}
	rep.Phase, rep.Started, rep.Threads, rep.Distribution = phase, began, c.threads, c.requests
	rep.Client.CPUSeconds = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	rep.Client.CPUEach = rep.Client.CPUSeconds * 1e6 / float64(max(rep.Operations, 1))
	if rep.Failed > 0 {
		rep.FirstError = firstFailure(said.String())
	}
	if phase == Load && rep.Failed > 0 {
		return rep, fmt.Errorf("ycsb could not insert %d records: %s", rep.Failed, rep.FirstError)
	}
	return rep, nil
}

func (p *Peer) arguments(phase Phase, file string) []string {
	if !p.java {
		return []string{string(phase), "mongodb", "-P", file}
	}
	how := map[Phase]string{Load: "-load", Run: "-t"}[phase]
	return []string{how, "-db", "site.ycsb.db.MongoDbClient", "-P", file}
}

// javaFile are the properties as a file that the Java tool reads.
func (p Properties) javaFile() []byte {
	p = p.With("workload", "site.ycsb.workloads.CoreWorkload")
	if p["operationcount"] == "" {
		p["operationcount"] = "0" // which a load, too, does not do without
	}
	// Where results go is decided here.
	for _, name := range []string{"exportfile", "exporter", "measurementtype"} {
		delete(p, name)
	}
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", escapeJava(name), escapeJava(p[name]))
	}
	return b.Bytes()
}

// escapeJava writes a name or a value so that Java and Properties.Read get it back.
func escapeJava(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case strings.ContainsRune(`\ :=#!`, r):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r > '~' && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// lastOf is the end of what a program said, in one line.
func lastOf(s string) string {
	const most = 2000
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), " | ")
	return strings.ToValidUTF8(s[max(len(s)-most, 0):], "?")
}

func firstFailure(said string) string {
	for line := range strings.Lines(said) {
		if strings.Contains(line, "Exception") || strings.Contains(line, "rror") {
			return strings.TrimSpace(line)
		}
	}
	return "see its own output"
}

func readLines(out string) (*Report, error) {
	rep, byName := &Report{}, map[string]*Series{}
	for line := range strings.Lines(out) {
		metric, rest, ok := strings.Cut(strings.TrimSpace(line), ", ")
		what, value, ok2 := strings.Cut(rest, ", ")
		number, err := strconv.ParseFloat(value, 64)
		if !ok || !ok2 || err != nil || !strings.HasPrefix(metric, "[") || !strings.HasSuffix(metric, "]") {
			continue
		}
		name := metric[1 : len(metric)-1]
		if name == "OVERALL" {
			switch what {
			case "RunTime(ms)":
				rep.Seconds = number / 1000
			case "Throughput(ops/sec)":
				rep.Throughput = number
			}
			continue
		}
		if byName[name] == nil {
			byName[name] = &Series{Name: name, Returns: map[string]int64{}}
		}
		byName[name].read(what, number)
	}
	if rep.Seconds <= 0 {
		return nil, errors.New("there is no line [OVERALL], RunTime(ms)")
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		s := byName[name]
		rep.Series = append(rep.Series, *s)
		if name != opRead.String() && name != opUpdate.String() && name != opInsert.String() {
			continue
		}
		for status, n := range s.Returns {
			rep.Operations += n
			if status != statusOK.String() && status != statusBatched.String() {
				rep.Failed += n
			}
		}
	}
	return rep, nil
}

func (s *Series) read(what string, v float64) {
	if status, ok := strings.CutPrefix(what, "Return="); ok {
		s.Returns[status] = int64(v)
	}
	if what == "AverageLatency(us)" {
		s.Average = v
	}
	into := map[string]*int64{"Operations": &s.Operations, "MinLatency(us)": &s.Min, "MaxLatency(us)": &s.Max,
		"95thPercentileLatency(us)": &s.P95, "99thPercentileLatency(us)": &s.P99}[what]
	if into != nil {
		*into = int64(v)
	}
}
