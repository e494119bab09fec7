package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

const jobName = "mrbench"

// millraceSync returns the arguments of a sync. The clusters' addresses may hold passwords: see clusterEnv.
func (b *bench) millraceSync(more ...string) []string {
	return b.millraceResume(append([]string{"--restart"}, more...)...)
}

// millraceResume is the same for a job that is there.
func (b *bench) millraceResume(more ...string) []string {
	args := []string{"sync", "--job", jobName, "--output", "json", "--log-level", "warn"}
	if !slices.Contains(more, "--include") {
		args = append(args, "--include", dataDB+".*")
	}
	return append(append(args, more...), b.o.MillraceArgs...)
}

// Variant is millrace with other arguments, as a contender beside the plain one.
type Variant struct {
	Name string   // what a report calls it, after "millrace, "
	Args []string // more arguments of its sync
}

// ParseVariant reads name=arguments, the arguments separated by blanks.
func ParseVariant(s string) (Variant, error) {
	name, args, _ := strings.Cut(s, "=")
	v := Variant{Name: strings.TrimSpace(name), Args: strings.Fields(args)}
	if v.Name == "" || len(v.Args) == 0 || !strings.HasPrefix(v.Args[0], "-") {
		return v, mongo.WithHint(fmt.Errorf("invalid variant %q", s),
			"write name=arguments, such as \"source spared=--source-load=low\"")
	}
	return v, nil
}

// variants are millrace as it is measured anyway, which comes first, and the others that are wanted.
func (b *bench) variants() []Variant {
	all := []Variant{{Name: "millrace"}}
	for _, v := range b.o.Variants {
		all = append(all, Variant{"millrace, " + v.Name, v.Args})
	}
	return all
}

// syncs are the contenders of a sync that ends by itself.
func (b *bench) syncs(st *site, prepare, check func(context.Context) error, more ...string) (all []contender) {
	for _, v := range b.variants() {
		args := append(b.millraceSync(more...), v.Args...)
		all = append(all, contender{
			name: v.Name, kind: KindMillrace, how: commandLine(args), prepare: prepare, check: check,
			run: func(ctx context.Context, m *meter) error { return b.runMillrace(ctx, st, m, args) },
		})
	}
	return all
}

func commandLine(args []string) string { return "millrace " + strings.Join(args, " ") }

// clusterEnv tells a millrace where it works, and keeps its records apart.
func (b *bench) clusterEnv(st *site) []string {
	return []string{"MILLRACE_SOURCE=" + st.source.uri, "MILLRACE_TARGET=" + st.target.uri, "XDG_STATE_HOME=" + b.dir}
}

func (b *bench) runMillrace(ctx context.Context, st *site, m *meter, args []string) error {
	report := filepath.Join(b.dir, "report.json")
	if err := os.RemoveAll(report); err != nil {
		return err
	}
	args = append(slices.Clip(args), "--report", report)
	if err := toEnd(ctx, m, program{name: b.o.Millrace, args: args, env: b.clusterEnv(st)}); err != nil {
		return err
	}
	return phases(report, m)
}

// toEnd runs a program that is measured to its end.
func toEnd(ctx context.Context, m *meter, p program) error {
	c, err := startChild(ctx, p)
	if err != nil {
		return err
	}
	m.runs(c.pid())
	err = c.wait()
	m.used(c.cpu())
	return err
}

func readJSON(path, what string, into any) error {
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	return mongo.Wrap(err, "read %s", what)
}

// phases notes how long millrace says its phases took, and what it folded.
func phases(report string, m *meter) error {
	var r struct {
		Status struct {
			PhaseSeconds map[string]float64 `json:"phaseSeconds"`
			Follow       struct {
				Folded int64 `json:"folded"`
			} `json:"follow"`
		} `json:"status"`
	}
	if err := readJSON(report, "the report of millrace", &r); err != nil {
		return err
	}
	for phase, s := range r.Status.PhaseSeconds {
		m.note(phase, s)
	}
	if n := r.Status.Follow.Folded; n > 0 {
		m.value("operations folded", float64(n))
	}
	return nil
}

// The source's second member has no vote and priority, so that the first is its own majority meanwhile.
const spare = 1

// retire takes the vote of the second member and stops it.
func (s *side) retire(ctx context.Context) error {
	err := lab.Reconfigure(ctx, s.direct.Client, func(c *lab.SetConfig) error {
		if len(c.Members) <= spare {
			return errors.New("the source has no second member")
		}
		c.Members[spare]["votes"], c.Members[spare]["priority"] = 0, 0
		return nil
	})
	if err != nil {
		return fmt.Errorf("take the second member's vote: %w", err)
	}
	if err := s.spare().Stop(); err != nil {
		return err
	}
	return s.connect(ctx)
}

func (s *side) spare() *lab.Member { return s.lab.Members()[spare] }

// initialSync is the server's own logical copy into an empty member.
func (w *fullWork) initialSync() contender {
	m := w.source.spare()
	return contender{
		name: peerSecondary, kind: KindPeer,
		how: "initial sync of an empty member of the source's replica set, from its own begin until SECONDARY; it " +
			"writes no oplog; its CPU, from the start of the process, and its memory are the tool's",
		prepare: func(context.Context) error { return os.RemoveAll(m.DBPath) },
		run: func(ctx context.Context, mt *meter) error {
			var began time.Time
			return w.source.spareRun(ctx, mt, func(ctx context.Context, c *mongo.Cluster) (bool, error) {
				done, err := isSecondary(ctx, c)
				if err != nil {
					return false, err
				}
				if !done {
					began = syncBegan(ctx, c, began)
					return false, nil
				}
				if began.IsZero() {
					return false, errors.New("the initial sync was over before its begin was seen")
				}
				mt.set(func(r *Round) { r.Seconds = time.Since(began).Seconds() })
				return true, (&side{direct: c}).holds(ctx, "the member", w.data)
			})
		},
	}
}

// syncBegan returns when a member began its initial sync, by this machine's clock; known is the last answer.
func syncBegan(ctx context.Context, c *mongo.Cluster, known time.Time) time.Time {
	if !known.IsZero() {
		return known
	}
	raw, err := c.Command(ctx, "admin", bson.D{{Key: "replSetGetStatus", Value: 1}, {Key: "initialSync", Value: 1}})
	if err != nil {
		return known // it is in no replica set yet
	}
	if ms, ok := raw.Lookup("initialSyncStatus", "initialSyncStart").DateTimeOK(); ok {
		return time.UnixMilli(ms)
	}
	return known
}

// catchUp is the server's own secondary that was down while the backlog was written.
func (w *incrWork) catchUp() contender {
	m := w.source.spare()
	return contender{
		name: peerSecondary, kind: KindPeer,
		how: "a member of the source's replica set that was down, from its first progress until it has applied the last " +
			"operation; its CPU, from the start of the process, and its memory are the tool's",
		prepare: func(context.Context) error {
			return errors.Join(os.RemoveAll(m.DBPath), os.CopyFS(m.DBPath, os.DirFS(w.behind)))
		},
		run: func(ctx context.Context, mt *meter) error {
			var began time.Time
			return w.source.spareRun(ctx, mt, func(ctx context.Context, c *mongo.Cluster) (bool, error) {
				p, err := c.Positions(ctx)
				if err != nil || !w.span.from.Before(p.Last) {
					return false, err
				}
				if began.IsZero() {
					began = time.Now()
				}
				mt.set(func(r *Round) { r.Seconds = time.Since(began).Seconds() })
				return !p.Last.Before(w.span.to), nil
			})
		},
	}
}

// spareRun starts the second member, asks done again and again as soon as it answers, and stops it.
func (s *side) spareRun(ctx context.Context, mt *meter,
	done func(context.Context, *mongo.Cluster) (bool, error)) (err error) {
	m := s.spare()
	started := make(chan error, 1)
	go func() { started <- m.Start(ctx) }() // returns only when it is a secondary
	defer func() {
		err = errors.Join(err, <-started)
		mt.used(processCPU([]int{m.Pid()}))
		err = errors.Join(err, m.Stop())
	}()
	c, err := connectWhenUp(ctx, s.lab.DirectURI(spare))
	if err != nil {
		return err
	}
	defer c.Close()
	mt.runs(m.Pid())
	return await(ctx, 5*time.Millisecond, func() (bool, error) { return done(ctx, c) })
}

// connectWhenUp connects to a member as soon as it answers.
func connectWhenUp(ctx context.Context, uri string) (*mongo.Cluster, error) {
	for {
		c, err := mongo.Connect(ctx, uri, mongo.Options{AppName: "millrace bench",
			ServerSelectionTimeout: 200 * time.Millisecond})
		if err == nil {
			return c, nil
		}
		if !tick(ctx, 10*time.Millisecond) {
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

func isSecondary(ctx context.Context, c *mongo.Cluster) (bool, error) {
	raw, err := c.Command(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return false, err
	}
	yes, _ := raw.Lookup("secondary").BooleanOK()
	return yes, nil
}
