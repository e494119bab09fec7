package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// Peer is another tool that takes part.
type Peer struct {
	Name     string
	Program  string    // its path; empty for secondary, which is the server itself
	Settings []Setting // Settings of its configuration that are changed or added; nil is none.
}

// Setting is a line of a tool's configuration.
type Setting struct{ Key, Value string }

// PeerNames lists the tools that are known, for help texts.
func PeerNames() string {
	var names []string
	for _, t := range tools() {
		names = append(names, t.name+t.help)
	}
	return "known: " + strings.Join(names, ", ")
}

// ParsePeer reads name=program and checks that the program is there.
func ParsePeer(s string) (Peer, error) {
	name, program, _ := strings.Cut(s, "=")
	if strings.Contains(program, string(filepath.Separator)) {
		abs, err := filepath.Abs(program) // it may be run elsewhere
		if err != nil {
			return Peer{}, fmt.Errorf("peer %s: %w", name, err)
		}
		program = abs
	}
	p := Peer{Name: name, Program: program}
	return p, p.check()
}

// SetPeer reads name:key=value and changes the configuration of the peer of that name.
func SetPeer(peers []Peer, s string) error {
	name, line, named := strings.Cut(s, ":")
	key, value, _ := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	if !named || key == "" || !strings.Contains(line, "=") || strings.ContainsAny(line, "\r\n") {
		return mongo.WithHint(fmt.Errorf("invalid peer setting %q", s), "write name:key=value, such as "+peerMongoShake+
			":incr_sync.worker=16")
	}
	i := slices.IndexFunc(peers, func(p Peer) bool { return p.Name == name })
	if i < 0 {
		return mongo.WithHint(fmt.Errorf("%s: no peer %q takes part", s, name), "give --peer "+name+
			"=/path/to/program as well")
	}
	p := &peers[i]
	p.Settings = append(p.Settings, Setting{key, value})
	return p.checkSettings()
}

// checkSettings refuses those that the bench has to choose.
func (p Peer) checkSettings() error {
	t, _ := p.tool()
	for _, s := range p.Settings {
		if len(t.place) == 0 {
			return fmt.Errorf("peer %s has no configuration file, so that %s cannot be set", p.Name, s.Key)
		}
		if slices.ContainsFunc(t.place, func(of Setting) bool { return of.Key == s.Key }) {
			return fmt.Errorf("peer %s: %s is set by the bench, so that the tool works on its servers", p.Name, s.Key)
		}
	}
	return nil
}

func (p Peer) tool() (tool, bool) {
	all := tools()
	i := slices.IndexFunc(all, func(t tool) bool { return t.name == p.Name })
	if i < 0 {
		return tool{}, false
	}
	return all[i].with(p.Settings), true
}

// draining is the same for a backlog that begins at a second; false when it drains none.
func (p Peer) draining(from time.Time) (tool, bool) {
	t, _ := p.tool()
	if t.drains == nil {
		return tool{}, false
	}
	return t.drains(from).with(p.Settings), true
}

func (p Peer) check() error {
	if _, ok := p.tool(); !ok {
		return mongo.WithHint(fmt.Errorf("peer %q is unknown", p.Name), PeerNames())
	}
	if p.Name == peerSecondary {
		if p.Program != "" {
			return fmt.Errorf("peer %s is the server itself and takes no program", p.Name)
		}
		return nil
	}
	programs := []string{p.Program}
	if p.Name == peerDump {
		programs = append(programs, p.restore())
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil || program == "" {
			return mongo.WithHint(fmt.Errorf("peer %s: there is no program %q", p.Name, program),
				"give its path: --peer "+p.Name+"=/path/to/program")
		}
	}
	return p.checkSettings()
}

// restore is the mongorestore that belongs to a mongodump.
func (p Peer) restore() string { return filepath.Join(filepath.Dir(p.Program), "mongorestore") }

func (b *bench) hasPeer(name string) bool {
	return slices.ContainsFunc(b.o.Peers, func(p Peer) bool { return p.Name == name })
}

func (b *bench) peers(way func(Peer) (contender, bool)) (all []contender) {
	for _, p := range b.o.Peers {
		if x, ok := way(p); ok {
			all = append(all, x)
		}
	}
	return all
}

// peer is a peer's way to do a copy; false when it has none.
func (w *fullWork) peer(p Peer) (contender, bool) {
	t, _ := p.tool()
	x := contender{name: p.Name, kind: KindPeer, how: t.describe(), check: w.complete, prepare: w.cleared}
	switch {
	case p.Name == peerDump:
		x.run = func(ctx context.Context, m *meter) error { return w.dump(ctx, w.site, m, p) }
		return x, true
	case p.Name == peerSecondary && !w.link.far() && !w.cold && !w.files:
		return w.initialSync(), true
	case t.args == nil, t.noIndexes && len(w.indexes) > 0:
		return contender{}, false
	}
	f := w.follow(w.site, p, t)
	x.how += "; until the target has all documents and indexes"
	x.run = func(ctx context.Context, m *meter) error { return w.copyBy(ctx, f, m) }
	return x, true
}

// copyBy has a follower copy and stops the clock when everything is there; that it follows then is checked after.
func (w *fullWork) copyBy(ctx context.Context, f follower, m *meter) error {
	// The markers' collection is made before: some tools end at a schema change during their copy.
	if err := setMarker(ctx, w.source, bson.NewObjectID()); err != nil {
		return err
	}
	began := time.Now()
	return running(ctx, f, m, func(ctx context.Context) error {
		if err := awaitAll(ctx, w.arrived); err != nil {
			return err
		}
		if err := w.endsOnMajority(ctx, m, began); err != nil {
			return err
		}
		err := passMarker(ctx, w.site)
		m.note("following", time.Since(began).Seconds())
		return err
	})
}

// partMajority is the time from the last answer of the target's primary until a majority of the members has it all.
const partMajority = "majority"

// endsOnMajority ends the round when a majority of the target's members has what arrived.
func (st *site) endsOnMajority(ctx context.Context, m *meter, began time.Time) error {
	arrived := time.Now()
	if err := st.target.majority(ctx); err != nil {
		return err
	}
	m.note(partMajority, time.Since(arrived).Seconds())
	m.ended(began)
	return nil
}

// stalled is how long a peer may bring nothing new: some lose documents, and would never end.
const stalled = time.Minute

// awaitAll waits until everything is there. look also returns a number that changes while work goes on.
func awaitAll(ctx context.Context, look func(context.Context) (done bool, have int64, err error)) error {
	last, since := int64(-1), time.Now()
	return await(ctx, 20*time.Millisecond, func() (bool, error) {
		done, have, err := look(ctx)
		if have != last {
			last, since = have, time.Now()
		}
		if !done && err == nil && time.Since(since) > stalled {
			err = fmt.Errorf("the target has %d documents, not all, and got no more for %s", have, stalled)
		}
		return done, err
	})
}

// arrived reports that the target has all documents and no index is missing or being built.
func (w *fullWork) arrived(ctx context.Context) (bool, int64, error) {
	n, err := w.target.count(ctx, w.data.collections)
	if err != nil || n < int64(w.data.docs) {
		return false, n, err
	}
	for c := range w.data.collections {
		built, err := w.target.built(ctx, c)
		if err != nil || built < 1+len(w.indexes) {
			return false, n, err
		}
	}
	return true, n, nil
}

// built is the number of complete indexes of a collection.
func (s *side) built(ctx context.Context, c int) (n int, err error) {
	raw, err := s.direct.Command(ctx, dataDB, bson.D{{Key: "listIndexes", Value: collection(c)}})
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	list, _ := raw.Lookup("cursor", "firstBatch").ArrayOK()
	values, err := list.Values()
	for _, v := range values {
		if _, err := v.Document().LookupErr("buildUUID"); err != nil {
			n++
		}
	}
	return n, err
}

func (b *bench) dump(ctx context.Context, st *site, m *meter, p Peer) (err error) {
	from, err := b.uriFile("dump.yaml", st.source.uri)
	if err != nil {
		return err
	}
	to, err := b.uriFile("restore.yaml", st.target.uri)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	read, err := startChild(ctx, program{name: p.Program, stdout: w,
		args: []string{"--config=" + from, "--db=" + dataDB, "--archive"}})
	w.Close() // the child has its own copy
	if err != nil {
		r.Close()
		return err
	}
	m.runs(read.pid())
	write, err := startChild(ctx, program{name: p.restore(), stdin: r,
		args: []string{"--config=" + to, "--archive", "--numInsertionWorkersPerCollection=8"}})
	r.Close()
	if err != nil {
		return errors.Join(err, read.stop())
	}
	m.runs(write.pid())
	if err := errors.Join(read.wait(), write.wait()); err != nil {
		return err
	}
	m.used(read.cpu() + write.cpu())
	return nil
}

// uriFile keeps a connection string out of the list of processes.
func (b *bench) uriFile(name, uri string) (string, error) {
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, []byte("uri: "+uri+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write configuration: %w", err)
	}
	return path, nil
}
