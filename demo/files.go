package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/workshop/lab"
)

// filesMembers is how many members the agents make.
const filesMembers = 3

// byFiles is a target that agents make of the source's files.
type byFiles struct {
	dir, token string
	source     string   // address of the source's agent
	addresses  []string // of the target's agents
	hosts      []string // of the members
	agents     []*lab.Child
	end        context.CancelFunc // of the agents
	took       time.Duration      // until the job followed
	logical    time.Duration      // of a sync by documents into a set of as many members
}

func (f *byFiles) URI() string {
	return "mongodb://" + strings.Join(f.hosts, ",") + "/?replicaSet=made"
}

func (f *byFiles) member(i int) string { return filepath.Join(f.dir, "db"+strconv.Itoa(i)) }

// Stop ends the agents and the members, whose process ids are in their directories.
func (f *byFiles) Stop() error {
	if f.end != nil {
		f.end()
	}
	for _, c := range f.agents {
		<-c.Done()
	}
	for i := range f.hosts {
		raw, err := os.ReadFile(filepath.Join(f.member(i), "mongod.lock"))
		pid, bad := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil || bad != nil {
			continue // it was never started
		}
		for syscall.Kill(pid, syscall.SIGKILL) == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
	return os.RemoveAll(f.dir)
}

// planFiles chooses the ports of the agents and members.
func planFiles() (f *byFiles, err error) {
	f = &byFiles{}
	if f.dir, err = os.MkdirTemp(os.Getenv("MILLRACE_LAB_DIR"), "millrace-demo-files-"); err != nil {
		return nil, err
	}
	f.token = filepath.Join(f.dir, "token")
	if err := os.WriteFile(f.token, []byte("a token for the demo, nothing else\n"), 0o600); err != nil {
		return nil, err
	}
	var ports []string
	for range 1 + 2*filesMembers {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // after all have been chosen
		ports = append(ports, l.Addr().String())
	}
	f.source = ports[0]
	f.addresses, f.hosts = ports[1:1+filesMembers], ports[1+filesMembers:]
	return f, nil
}

// startFiles starts the agents of both sides, then the sync.
func (d *demo) startFiles(ctx context.Context) error {
	f := d.files
	src, ok := d.source.cluster.(*lab.Cluster)
	if !ok {
		return errors.New("--files needs a replica set as the source")
	}
	primary, err := src.Primary(ctx)
	if err != nil {
		return err
	}
	m := src.Members()[(primary+1)%len(src.Members())]
	program, env, err := lab.Mongod(ctx, mongodVersion)
	if err != nil {
		return err
	}
	d.env = env
	agents, end := context.WithCancel(context.WithoutCancel(ctx)) // they outlive the sync
	f.end = end
	said, err := os.Create(d.log())
	if err != nil {
		return err
	}
	defer said.Close()
	d.out.Print("\n$ millrace seed serve --dbpath …                            # on a secondary of the source")
	if err := d.agent(agents, said, "serve", "--uri", src.DirectURI(m.Index), "--dbpath", m.DBPath, "--listen", f.source,
		"--token-file", f.token); err != nil {
		return err
	}
	d.out.Printf("$ millrace seed agent --dbpath … --member … -- mongod …     # on %d hosts of the target", filesMembers)
	args := []string{"sync", "--job", "demo", "--copy", "files", "--source-agent", "http://" + f.source, "--token-file",
		f.token}
	for i, host := range f.hosts {
		_, port, err := net.SplitHostPort(host)
		if err != nil {
			return err
		}
		if err := d.agent(agents, said, "agent", "--dbpath", f.member(i), "--member", host, "--listen", f.addresses[i],
			"--token-file", f.token, "--", program, "--replSet", "made", "--bind_ip", "127.0.0.1", "--port", port,
			"--nounixsocket", "--dbpath", f.member(i), "--wiredTigerCacheSizeGB", "0.25", "--setParameter",
			"ttlMonitorSleepSecs=1"); err != nil {
			return err
		}
		args = append(args, "--target-agents", "http://"+f.addresses[i])
	}
	for _, address := range append([]string{f.source}, f.addresses...) {
		if err := listening(ctx, address); err != nil {
			return err
		}
	}
	d.out.Print("$ millrace sync --source … --target … --job demo --copy files --source-agent … --target-agents …")
	return d.begin(ctx, os.Stderr, args...)
}

func listening(ctx context.Context, address string) error {
	return poll(ctx, func() (bool, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return false, ctx.Err()
		}
		return true, c.Close()
	})
}

func (d *demo) agent(ctx context.Context, log io.Writer, args ...string) error {
	c, err := d.start(ctx, io.Discard, log, append([]string{"seed"}, args...)...)
	if err == nil {
		d.files.agents = append(d.files.agents, c)
	}
	return err
}

// logicalWay copies the same source by documents into a set of as many members.
func (d *demo) logicalWay(ctx context.Context) error {
	if d.files == nil {
		return nil
	}
	other := side{name: "logical", topology: fmt.Sprintf("rs:%d", filesMembers)}
	if err := other.start(ctx); err != nil {
		return err
	}
	defer func() { _ = other.cluster.Stop() }()
	made := d.target
	d.target = other
	defer func() { d.target = made }()
	d.out.Print("\n$ millrace sync --source … --target … --until caught-up    # the same by documents, nobody writes")
	began := time.Now()
	var sum any
	if err := d.ask(ctx, &sum, "sync", "--job", "logical", "--until", "caught-up", "--log-level", "error"); err != nil {
		return err
	}
	d.files.logical = time.Since(began)
	return nil
}
