package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

// filesSet is the name of a set that is made of files.
const filesSet = "mrfiles"

// filesServers are the sets of a copy by files: it reads a secondary, and makes as many members as the target has.
func filesServers() pairing { return pairing{source: "rs:2", target: "rs:3"} }

// byFiles are the ways to copy a set by its files, which need no document of the target.
func (w *fullWork) byFiles() []contender {
	f := &filesWork{fullWork: w}
	return []contender{f.plain(), f.agents()}
}

// filesWork makes members in directories of their own. The target's servers of the site do nothing meanwhile.
type filesWork struct {
	*fullWork
	from *lab.Member // the source's member whose files are copied: a secondary
	new  []*newcomer
}

// begin chooses the secondary, and directories and ports of the new members.
func (w *filesWork) begin(ctx context.Context) error {
	if err := w.end(ctx); err != nil {
		return err
	}
	primary, err := w.source.lab.Primary(ctx)
	if err != nil {
		return err
	}
	w.from = w.source.lab.Members()[1-primary]
	if err := w.source.settle(ctx); err != nil {
		return err
	}
	for range w.target.lab.Members() {
		port, err := freePort(ctx)
		if err != nil {
			return err
		}
		dir := filepath.Join(filepath.Dir(filepath.Dir(w.from.DBPath)), "files-"+port)
		n, err := newNewcomer(ctx, w.source.Info.Version, port, dir, "--replSet", filesSet, "--wiredTigerCacheSizeGB",
			w.target.cache)
		if err != nil {
			return err
		}
		w.new = append(w.new, n)
	}
	return nil
}

// end stops the members of the last round and removes their files.
func (w *filesWork) end(ctx context.Context) error {
	var errs []error
	for _, n := range w.new {
		n.find()
		errs = append(errs, n.end(ctx), n.remove())
	}
	w.new = nil
	return errors.Join(errs...)
}

// find looks for the process of a member that an agent has started.
func (n *newcomer) find() {
	if raw, err := os.ReadFile(filepath.Join(n.dir, "mongod.lock")); n.child == nil && err == nil {
		n.pid, _ = strconv.Atoi(strings.TrimSpace(string(raw))) // the file is empty after its end
	}
}

// used is the processor time of the new members.
func (w *filesWork) used() (seconds float64) {
	for _, n := range w.new {
		n.find()
		seconds += processCPU([]int{n.pid})
	}
	return seconds
}

// plain is cp for each member, and the server's own recovery.
func (w *filesWork) plain() contender {
	return contender{
		name: "cp and recovery", kind: KindCeiling, prepare: w.begin,
		how: "fsyncLock of a secondary, its files copied for each new member at the same time (4 ranges of 8 MiB at a time " +
			"each, holes kept), fsyncUnlock, fsync; then a mongod is started on each until it answers",
		run: func(ctx context.Context, m *meter) error {
			s := &seedWork{bench: w.bench, site: w.site, from: w.from.Index}
			each := func(do func(context.Context, *newcomer) error) error {
				g, ctx := errgroup.WithContext(ctx)
				for _, n := range w.new {
					g.Go(func() error { return do(ctx, n) })
				}
				return g.Wait()
			}
			err := m.part("copy under the lock", func() error {
				return s.locked(ctx, m, func() error {
					return each(func(ctx context.Context, n *newcomer) error {
						_, err := copyFiles(ctx, w.from.DBPath, n.dir)
						return err
					})
				})
			})
			if err != nil {
				return err
			}
			if err := m.part("fsync", func() error {
				return each(func(_ context.Context, n *newcomer) error { return syncFiles(n.dir) })
			}); err != nil {
				return err
			}
			err = m.part("recover", func() error {
				return each(func(_ context.Context, n *newcomer) error {
					if err := n.start(ctx, lab.DiskSpeed{}); err != nil {
						return err
					}
					c, err := connectWhenUp(ctx, n.uri())
					if err == nil {
						c.Close()
					}
					return err
				})
			})
			m.newMember(w.used())
			return err
		},
		check: w.end,
	}
}

// agents is millrace, from the start of its sync until the new set is finalized.
func (w *filesWork) agents() contender {
	args := w.millraceResume("--until", "caught-up", "--copy", "files")
	return contender{
		name: "millrace, by files", kind: KindMillrace, prepare: w.begin,
		how: commandLine(args) + " --source-agent … --target-agents …; its agents run already, and count as the tool",
		run: func(ctx context.Context, m *meter) error {
			agents, stop := context.WithCancel(ctx)
			a := &agentGroup{filesWork: w, m: m, token: filepath.Join(w.dir, "token")}
			err := a.start(agents)
			if err == nil {
				err = w.sync(ctx, m, append(args[:len(args):len(args)], a.args...), a.target)
			}
			stop()
			return errors.Join(err, a.all.Wait())
		},
		check: w.made,
	}
}

// agentGroup are the agents of both sides.
type agentGroup struct {
	*filesWork
	m      *meter
	token  string
	all    errgroup.Group
	args   []string // of the sync
	target string   // the new set's connection string
}

// start starts them, until ctx ends.
func (a *agentGroup) start(ctx context.Context) error {
	if err := os.WriteFile(a.token, []byte("a token of the bench, nothing else\n"), 0o600); err != nil {
		return err
	}
	source, err := a.agent(ctx, "serve", "--uri", a.source.lab.DirectURI(a.from.Index), "--dbpath", a.from.DBPath)
	if err != nil {
		return err
	}
	a.args = []string{"--source-agent", source, "--token-file", a.token}
	var hosts []string
	for _, n := range a.new {
		address, err := a.agent(ctx, "agent", append([]string{"--dbpath", n.dir, "--member", n.host, "--", n.program},
			n.args...)...)
		if err != nil {
			return err
		}
		a.args, hosts = append(a.args, "--target-agents", address), append(hosts, n.host)
	}
	a.target = "mongodb://" + strings.Join(hosts, ",") + "/?replicaSet=" + filesSet
	return nil
}

// agent starts one and returns its address. That ctx ends it is no error.
func (a *agentGroup) agent(ctx context.Context, how string, args ...string) (string, error) {
	port, err := freePort(ctx)
	if err != nil {
		return "", err
	}
	address := "127.0.0.1:" + port
	args = append([]string{"seed", how, "--listen", address, "--token-file", a.token, "--log-level", "warn"}, args...)
	c, err := startChild(ctx, program{name: a.o.Millrace, env: a.new[0].env, args: args})
	if err != nil {
		return "", err
	}
	a.m.runs(c.pid())
	a.all.Go(func() error {
		err := c.wait()
		if a.m.used(c.cpu()); ctx.Err() == nil {
			return err
		}
		return nil
	})
	return "http://" + address, listens(ctx, c, address)
}

// sync measures the sync alone: agents run for a long time before it, as a service does.
func (w *filesWork) sync(ctx context.Context, m *meter, args []string, target string) error {
	st := &site{source: w.source, target: &side{uri: target}}
	var largest int64
	stop := beside(ctx, func(ctx context.Context) error {
		for tick(ctx, memoryEvery) {
			for _, pid := range m.processes() {
				_, peak := memory(pid)
				largest = max(largest, peak)
			}
		}
		return nil
	})
	began := time.Now()
	err := w.runMillrace(ctx, st, m, args)
	took := time.Since(began).Seconds()
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	m.set(func(r *Round) { r.Seconds = took })
	m.newMember(w.used())
	m.value("largest process MB", float64(largest)/1e6)
	var host struct{ Copy struct{ LockSeconds float64 } }
	raw, err := os.ReadFile(w.new[0].dir + ".millrace")
	if err == nil {
		err = json.Unmarshal(raw, &host)
	}
	m.value(valueLocked, host.Copy.LockSeconds)
	return mongo.Wrap(err, "read the state of the first agent")
}

// made checks the new set, and ends it.
func (w *filesWork) made(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, w.end(ctx)) }()
	for _, n := range w.new {
		c, err := connectWhenUp(ctx, n.uri())
		if err != nil {
			return err
		}
		defer c.Close()
		set := *w.fullWork
		set.site = &site{source: w.source, target: &side{Cluster: c, direct: c}}
		if err := await(ctx, 10*time.Millisecond, func() (bool, error) {
			raw, err := c.Command(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
			if err != nil {
				return false, err
			}
			primary, _ := raw.Lookup("ismaster").BooleanOK()
			secondary, _ := raw.Lookup("secondary").BooleanOK()
			return primary || secondary, nil
		}); err != nil {
			return fmt.Errorf("wait for %s: %w", n.host, err)
		}
		if err := set.complete(ctx); err != nil {
			return fmt.Errorf("%s: %w", n.host, err)
		}
	}
	return nil
}
