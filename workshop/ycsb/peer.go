package ycsb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/workshop/lab"
)

// Peer is the Java tool, which drives the same load beside millrace.
type Peer struct {
	command []string // up to the phase
	// java says that the tool's class is started and not its script.
	java bool
}

// ParsePeer reads ycsb=path, where the path is a directory as the tool is
// shipped (lib, mongodb-binding/lib), one jar of it all, or its script bin/ycsb.
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
	return &Peer{command: []string{"java", "-cp", strings.Join(classes, string(filepath.ListSeparator)), "site.ycsb.Client"}, java: true}, nil
}

// jars are those of the tool and its binding, as places of a class path.
func jars(dir string) (classes []string, err error) {
	for _, sub := range []string{"", "lib", "mongodb-binding/lib"} {
		if found, err := filepath.Glob(filepath.Join(dir, sub, "*.jar")); err == nil && len(found) > 0 {
			classes = append(classes, filepath.Join(dir, sub, "*"))
		}
	}
	if len(classes) == 0 {
		return nil, mongo.WithHint(fmt.Errorf("peer ycsb: no jars in %s", dir), "name the directory that has lib and mongodb-binding, or a jar")
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
		return nil, fmt.Errorf("ycsb ended: %w; it said: %s", whyEnded(ctx, err), lastOf(said.String()+out.String()))
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

// whyEnded is why ctx ended, if it did, and else the error.
func whyEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
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

// escapeJava writes a name or a value so that Java and Properties.Read get it
// back.
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

// firstFailure is the first line that tells of an error.
func firstFailure(said string) string {
	for line := range strings.Lines(said) {
		if strings.Contains(line, "Exception") || strings.Contains(line, "rror") {
			return strings.TrimSpace(line)
		}
	}
	return "see its own output"
}

// readLines reads the lines of results of YCSB.
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

// read takes one figure.
func (s *Series) read(what string, v float64) {
	switch what {
	case "Operations":
		s.Operations = int64(v)
	case "AverageLatency(us)":
		s.Average = v
	case "MinLatency(us)":
		s.Min = int64(v)
	case "MaxLatency(us)":
		s.Max = int64(v)
	case "95thPercentileLatency(us)":
		s.P95 = int64(v)
	case "99thPercentileLatency(us)":
		s.P99 = int64(v)
	default:
		if status, ok := strings.CutPrefix(what, "Return="); ok {
			s.Returns[status] = int64(v)
		}
	}
}
