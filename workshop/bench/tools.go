package bench

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/workshop/lab"
)

// The peers. MongoShake is there at its best here, as published, and as delivered.
const (
	peerDsync          = "dsync"
	peerDump           = "mongodump"
	peerMongoShake     = "mongoshake"
	peerShakePublished = "mongoshake-published"
	peerShakeDefaults  = "mongoshake-defaults"
	peerPCSM           = "pcsm"
	peerSecondary      = "secondary"
)

// tool says how a peer is run. Its texts may have {source}, {target}, {db}, {shards} (the source's, or the set),
// {configs}, {routers}, {dir} (its own), {port} (a free one) and {config} (its configuration file).
type tool struct {
	name string
	help string // what --help adds to the name
	how  string // what a report says of a copy, followed or not, before the settings
	// args of the process that copies and follows, env in its environment; no args is a tool that does not follow.
	args, env []string
	// place are the lines of its file that say where it works, settings those that --peer-arg may change.
	place, settings []Setting
	ofShards        []Setting // that are other ones where the source is a sharded cluster
	// before are args of a run that comes first, then those of one that has the process begin, again until it does.
	before, then []string
	forget       string                    // database on the source where it keeps its records
	noIndexes    bool                      // it copies none
	drains       func(from time.Time) tool // the same for a backlog that begins at a second; nil is none.
}

func tools() []tool {
	return []tool{
		// With its highest ordinary load level.
		{name: peerDsync, noIndexes: true, how: "dsync --mode Full --load-level High --namespace " + dataDB,
			args: []string{"--mode", "Full", "--load-level", "High", "--verbosity", "WARN", "--web-port", "{port}",
				"--logfile", "{dir}/dsync.log", "--namespace", "{db}", "{source}", "{target}"}},
		{name: peerDump, help: " (with mongorestore beside it)", how: "mongodump --db=" + dataDB +
			" --archive | mongorestore --archive --numInsertionWorkersPerCollection=8"},
		// With several workers for the changes of one collection, which they do not get as it is delivered.
		mongoShake(shakePreset{peerMongoShake, " (its collector, the changes of a collection spread over its workers)",
			[]Setting{{"incr_sync.shard_key", "id"}, {"full_sync.reader.fetch_batch_size", "1024"}}}, "all", theEpoch),
		mongoShake(shakePreset{peerShakePublished, " (the same with published settings)", settingsOf(shakePublished)}, "all",
			theEpoch),
		mongoShake(shakePreset{peerShakeDefaults, " (the same as delivered)", nil}, "all", theEpoch),
		// Percona ClusterSync for MongoDB with its own defaults.
		{name: peerPCSM, how: "pcsm reset; pcsm; pcsm start --include-namespaces=" + dataDB + ".*",
			args: []string{}, before: []string{"reset"}, then: []string{"start", "--include-namespaces={db}.*"},
			env: []string{"PCSM_SOURCE_URI={source}", "PCSM_TARGET_URI={target}", "PCSM_LOG_LEVEL=warn", "PCSM_PORT={port}"}},
		{name: peerSecondary, help: " (the server's own, without a program)"},
	}
}

// with is the tool with some settings changed or added.
func (t tool) with(changed []Setting) tool {
	t.settings = slices.Clone(t.settings)
	for _, c := range changed {
		i := slices.IndexFunc(t.settings, func(s Setting) bool { return s.Key == c.Key })
		if i < 0 {
			t.settings = append(t.settings, c)
			continue
		}
		t.settings[i] = c
	}
	return t
}

func (t tool) describe() string {
	text := t.how
	for _, s := range t.settings {
		text += ", " + s.Key + "=" + s.Value
	}
	return text
}

func (t tool) file() (lines []string) {
	for _, s := range slices.Concat(t.place, t.settings) {
		lines = append(lines, strings.TrimRight(s.Key+" = "+s.Value, " "))
	}
	return lines
}

// theEpoch as a start is none: the tool copies and begins where the copy did.
const theEpoch = "1970-01-01T00:00:00Z"

type shakePreset struct {
	name, help string
	changed    []Setting // from those that it is delivered with
}

// mongoShake is MongoShake's collector as delivered, changed by a preset. It also builds indexes and follows schema
// changes, as the others do.
func mongoShake(p shakePreset, mode, from string) tool {
	t := tool{
		name: p.name, help: p.help, forget: "mongoshake", how: "collector, sync_mode=" + mode,
		args: []string{"-conf={config}", "-verbose=0"},
		place: []Setting{
			{"conf.version", "10"}, {"id", "mongoshake"}, {"master_quorum", "false"},
			{"sync_mode", mode}, {"mongo_urls", "{shards}"}, {"mongo_cs_url", "{configs}"}, {"mongo_s_url", "{routers}"},
			{"mongo_connect_mode", "primary"}, {"tunnel", "direct"}, {"tunnel.message", "raw"}, {"tunnel.address", "{target}"},
			{"filter.namespace.white", "{db}"},
			{"checkpoint.storage.url", ""}, {"checkpoint.storage.db", "mongoshake"},
			{"checkpoint.storage.collection", "ckpt_default"},
			{"checkpoint.start_position", from},
			{"log.level", "warning"}, {"log.dir", "{dir}"}, {"log.file", "collector.log"}, {"log.flush", "false"},
			{"full_sync.http_port", "{port}"}, {"incr_sync.http_port", "{port}"}, {"system_profile_port", "{port}"},
		},
		settings: settingsOf(shakeDelivered),
		// It begins only without: schema changes are not for it there.
		ofShards: []Setting{{"filter.ddl_enable", "false"}},
		drains:   func(from time.Time) tool { return mongoShake(p, "incr", from.UTC().Format("2006-01-02T15:04:05Z")) },
	}
	return t.with(p.changed)
}

// The collector's settings as it is delivered, and those that were published.
var (
	//go:embed mongoshake.conf
	shakeDelivered string
	//go:embed mongoshake-published.conf
	shakePublished string
)

// settingsOf reads lines of the form key = value.
func settingsOf(conf string) (all []Setting) {
	for line := range strings.Lines(conf) {
		if key, value, ok := strings.Cut(line, " = "); ok && line[0] != '#' {
			all = append(all, Setting{key, strings.TrimSpace(value)})
		}
	}
	return all
}

func (b *bench) follow(st *site, p Peer, t tool) follower {
	return follower{name: t.name, kind: KindPeer, how: t.describe(),
		start: func(ctx context.Context, m *meter) (*child, error) {
			dir := filepath.Join(b.dir, t.name)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, fmt.Errorf("make a directory: %w", err)
			}
			fill := filler(st, dir)
			config, err := fill(ctx, t.file())
			if err == nil && len(config) > 0 {
				err = os.WriteFile(filepath.Join(dir, "config"), []byte(strings.Join(config, "\n")+"\n"), 0o600)
			}
			if err != nil {
				return nil, fmt.Errorf("write configuration: %w", err)
			}
			if t.forget != "" {
				if err := st.source.direct.Client.Database(t.forget).Drop(ctx); err != nil {
					return nil, fmt.Errorf("forget what %s did before: %w", t.name, err)
				}
			}
			env, err := fill(ctx, t.env)
			if err != nil {
				return nil, err
			}
			var runs [3]program
			for i, args := range [][]string{t.before, t.args, t.then} {
				runs[i] = program{name: p.Program, env: env, dir: dir}
				if runs[i].args, err = fill(ctx, args); err != nil {
					return nil, err
				}
			}
			return startTool(ctx, m, t, runs)
		}}
}

// startTool starts the process of a tool, with what comes before and after.
func startTool(ctx context.Context, m *meter, t tool, runs [3]program) (*child, error) {
	if len(t.before) > 0 {
		if err := runTool(ctx, runs[0]); err != nil {
			return nil, err
		}
	}
	c, err := startChild(ctx, runs[1])
	if err != nil {
		return nil, err
	}
	m.runs(c.pid())
	for len(t.then) > 0 {
		err := runTool(ctx, runs[2])
		if err == nil {
			break
		}
		select {
		case <-c.Done():
			return nil, errors.Join(err, c.wait())
		default:
		}
		// It does not listen yet.
		if !tick(ctx, 20*time.Millisecond) {
			return nil, fmt.Errorf("start %s: %w (last: %w)", t.name, ctx.Err(), err)
		}
	}
	return c, nil
}

func runTool(ctx context.Context, p program) error {
	c, err := startChild(ctx, p)
	if err != nil {
		return err
	}
	return c.wait()
}

// filler puts what the texts of tools stand for into their places.
func filler(st *site, dir string) func(context.Context, []string) ([]string, error) {
	shards, configs, routers := st.source.parts()
	r := strings.NewReplacer("{shards}", shards, "{configs}", configs, "{routers}", routers, "{source}", st.source.uri,
		"{target}", st.target.uri, "{db}", dataDB, "{dir}", dir, "{config}", filepath.Join(dir, "config"))
	return func(ctx context.Context, texts []string) (filled []string, err error) {
		for _, s := range texts {
			if strings.Contains(s, "{port}") {
				port, err := freePort(ctx)
				if err != nil {
					return nil, err
				}
				s = strings.ReplaceAll(s, "{port}", port)
			}
			filled = append(filled, r.Replace(s))
		}
		return filled, nil
	}
}

// freePort returns a free port of the loopback interface.
func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

type child struct {
	*lab.Child
	name string
	cmd  *exec.Cmd
	out  tail
}

type program struct {
	name          string
	args          []string
	env           []string      // beyond that of the bench without its settings
	dir           string        // where it runs; empty is where the bench does
	stdin, stdout *os.File      // nil is nothing, and what the child remembers
	log           io.Writer     // takes its standard error, too, unless it is nil
	disk          lab.DiskSpeed // of its files, and of those of all that it starts
}

// startChild starts a program, for wait or stop. The end of ctx sends it SIGTERM.
func startChild(ctx context.Context, p program) (*child, error) {
	c := &child{name: filepath.Base(p.name)}
	c.cmd = spawn.CommandContext(ctx, p.name, p.args...)
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = 10 * time.Second
	c.cmd.Dir = p.dir
	c.cmd.Env = append(c.cmd.Env, p.env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	if p.log != nil {
		c.cmd.Stderr = io.MultiWriter(&c.out, p.log)
	}
	if p.stdin != nil {
		c.cmd.Stdin = p.stdin
	}
	if p.stdout != nil {
		c.cmd.Stdout = p.stdout
	}
	var err error
	if c.Child, err = lab.StartSlowed(c.cmd, p.disk); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// cpu is the processor time used, after the end.
func (c *child) cpu() float64 {
	return (c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()).Seconds()
}

// wait waits for the end; an error says what the program said last.
func (c *child) wait() error {
	if err := c.Wait(); err != nil {
		return fmt.Errorf("%s: %w; it said:\n%s", c.name, err, c.out.String())
	}
	return nil
}

// stop asks a program to end that does not end by itself, and waits for it. An end that came before is an error.
func (c *child) stop() error {
	select {
	case <-c.Done():
		return fmt.Errorf("%s ended by itself (%w); it said:\n%s", c.name, cmp.Or(c.Wait(), errors.New("exit 0")),
			c.out.String())
	default:
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end %s: %w", c.name, err)
	}
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.Done()
	}
	return nil
}

// tail keeps the end of what is written to it. It is safe for concurrent use.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const tailSize = 4000

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Write(p)
	if over := t.b.Len() - tailSize; over > tailSize {
		t.b.Next(over)
	}
	return len(p), nil
}

// String is what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.b.Bytes()
	return strings.ToValidUTF8(string(s[max(len(s)-tailSize, 0):]), "?")
}
