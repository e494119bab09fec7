package theme

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	millmongo "github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/replicate"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/test/history"
)

// patience bounds the wait for any one thing.
const patience = 45 * time.Second

// clusters are shared by all trials.
type clusters struct {
	sourceURI, targetURI string
	source, target       *mongo.Client
	pos                  *millmongo.Cluster // of the source
}

// kind is the way in which a trial ended.
type kind string

// All but fine are defects.
const (
	fine   kind = ""
	silent kind = "differs, and nobody was told"
	lost   kind = "what is not the job's was lost"
	forgot kind = "a conflict that ended the job is forgotten"
	stops  kind = "stops though nothing is wrong"
	stuck  kind = "does not go on"
	broken kind = "the trial itself"
)

// verdict is how a trial ended.
type verdict struct {
	kind kind
	text string
	told string // why the job has ended by itself, if it has
}

// player plays one trial.
type player struct {
	c        *clusters
	bin      string
	base     string
	t        Trial
	state    string // directory
	run      *history.Runner
	writers  bool // transactions: steps may have to wait for one another
	proc     *process
	startAt  string
	docs     int64 // limit
	paused   bool
	told     []string
	catalogs bool // finalized, and said that catalogs differ
	lastTold int  // number of the event
	now      int
	claims   claims
	outs     []string
}

// play plays a trial in databases that begin with base.
func play(ctx context.Context, c *clusters, bin, base string, t Trial) (v verdict) {
	state, err := os.MkdirTemp("", "millrace-theme-")
	if err != nil {
		return verdict{kind: broken, text: err.Error()}
	}
	defer func() { _ = os.RemoveAll(state) }()
	p := &player{c: c, bin: bin, base: base, t: t, state: state, claims: claims{}, lastTold: -1,
		run: &history.Runner{Client: c.source, Database: base}}
	for _, e := range t.Events {
		p.writers = p.writers || e.Step != nil && e.Step.Txn != 0
	}
	defer func() {
		if p.proc != nil {
			_ = p.proc.signal(ctx, syscall.SIGKILL)
		}
		_ = p.run.Close(ctx)
		p.clean(ctx)
	}()
	p.clean(ctx)
	err = p.events(ctx)
	if err == nil {
		err = p.run.Close(ctx)
	}
	if err == nil {
		err = p.finalize(ctx)
	}
	v = p.judge(ctx, err)
	if v.kind != fine && p.proc != nil {
		v.text += "\n--- millrace says\n" + p.proc.out.tail(12)
	}
	return v
}

func (p *player) clean(ctx context.Context) {
	for _, c := range []*mongo.Client{p.c.source, p.c.target} {
		for _, db := range history.Databases() {
			_ = c.Database(history.Name(p.base, db)).Drop(ctx)
		}
	}
	state := p.c.target.Database("millrace")
	_, _ = state.Collection("jobs").DeleteOne(ctx, bson.D{{Key: "_id", Value: p.base}})
	for _, coll := range []string{"slices", "collections", "deadletters", "deadletters.parts"} {
		_, _ = state.Collection(coll).DeleteMany(ctx, bson.D{{Key: "job", Value: p.base}})
	}
	_, _ = state.Collection("held").DeleteMany(ctx, bson.D{{Key: "_id.job", Value: p.base}})
}

func (p *player) named(s string) string { return strings.ReplaceAll(s, "DB", p.base) }

func (p *player) events(ctx context.Context) error {
	for i, e := range p.t.Events {
		p.now = i
		err := p.event(ctx, e)
		if errors.Is(err, errEnded) {
			err = p.ended()
		}
		if err != nil {
			return fmt.Errorf("event %d, %.200s: %w", i, e, err)
		}
	}
	return nil
}

// errStopped is a job that ended though nothing is wrong.
var errStopped = errors.New("the job ended by itself")

// ended notes how a job ended by itself. With somebody else on the target it may.
func (p *player) ended() error {
	if p.proc == nil {
		return nil
	}
	text := p.proc.out.tail(3)
	code := p.proc.code()
	p.outs = append(p.outs, text)
	if code == 0 {
		return nil
	}
	if !p.t.Foreign() {
		return fmt.Errorf("%w, exit code %d", errStopped, code)
	}
	p.told = append(p.told, text)
	p.lastTold = p.now
	p.proc = nil
	return nil
}

func (p *player) alive() bool { return p.proc != nil && !p.proc.ended() }

func (p *player) event(ctx context.Context, e Event) error {
	if p.proc != nil && p.proc.ended() {
		if err := p.ended(); err != nil {
			return err
		}
	}
	switch e.Do {
	case Source:
		return p.source(ctx, *e.Step)
	case Target:
		return p.target(ctx, *e.Step)
	case Clone:
		return p.clone(ctx)
	case Start:
		return p.start(ctx, e.Args)
	case Sleep:
		time.Sleep(e.Wait)
		return nil
	case Expire:
		return passes(ctx, p.c.target, 2)
	}
	if !p.alive() {
		return nil
	}
	switch e.Do {
	case Kill:
		err := p.proc.signal(ctx, syscall.SIGKILL)
		p.proc = nil
		return err
	case Stop:
		if err := p.proc.signal(ctx, syscall.SIGTERM); err != nil {
			return err
		}
		p.proc = nil
	case Pause, Resume, Throttle:
		return p.control(ctx, e)
	case Await, CaughtUp:
		return p.await(ctx, e)
	}
	return nil
}

// await waits for a job that can get there.
func (p *player) await(ctx context.Context, e Event) error {
	if p.paused || p.docs > 0 && (e.Do == CaughtUp || phaseNo(e.Phase) >= phaseNo("overlap")) {
		return nil
	}
	short := ctx
	if e.Wait > 0 {
		var cancel context.CancelFunc
		short, cancel = context.WithTimeout(ctx, e.Wait)
		defer cancel()
	}
	var err error
	if e.Do == Await {
		err = p.proc.reach(short, e.Phase)
	} else {
		err = p.caughtUp(short)
	}
	if short.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

func (p *player) start(ctx context.Context, more []string) error {
	if p.alive() {
		return nil
	}
	args := []string{"sync", "--source", p.c.sourceURI, "--target", p.c.targetURI, "--job", p.base,
		"--include", p.base, "--include", p.base + "-*", "--log-level", "debug"}
	for _, x := range p.t.Exclude {
		args = append(args, "--exclude", p.named(x))
	}
	for _, x := range p.t.Rename {
		args = append(args, "--rename", p.named(x))
	}
	if p.startAt != "" {
		args = append(args, "--mode", "incremental", "--start-at", p.startAt)
	}
	for _, x := range p.t.Args {
		args = append(args, p.named(x))
	}
	p.docs = 0 // a pause outlives the process
	for i, x := range more {
		args = append(args, p.named(x))
		if x == "--max-rate-docs" {
			_, _ = fmt.Sscan(more[i+1], &p.docs)
		}
	}
	var err error
	p.proc, err = startProcess(p.bin, p.state, args)
	return err
}

// control is the operator. A job that is about to end hears nothing.
func (p *player) control(ctx context.Context, e Event) error {
	// One that has not read its checkpoint yet does not know that it is paused,
	// and forgets that it was resumed.
	ready := func(s replicate.Status) bool {
		return e.Do == Throttle || s.Paused || s.Phase != replicate.PhaseStarting
	}
	if err := p.proc.until(ctx, "listen", ready); err != nil {
		return err
	}
	c := p.proc.api(ctx)
	var err error
	switch e.Do {
	case Pause:
		p.paused = true
		_, err = c.Pause(ctx)
	case Resume:
		p.paused = false
		_, err = c.Resume(ctx)
	default:
		p.docs = e.Docs
		_, err = c.SetLimits(ctx, server.Limits{Docs: &e.Docs})
	}
	if err == nil {
		return nil
	}
	select {
	case <-p.proc.done:
		return errEnded
	case <-time.After(5 * time.Second):
		return err
	}
}

func (p *player) caughtUp(ctx context.Context) error {
	at, err := p.c.pos.Positions(ctx)
	if err != nil {
		return err
	}
	return p.proc.until(ctx, "apply "+at.Last.String(), func(s replicate.Status) bool {
		applied, err := millmongo.ParseOpTime(s.Follow.Applied)
		return err == nil && !applied.Before(at.Last)
	})
}

// source runs a step on the source and notes what that says about documents
// that somebody else has changed on the target.
func (p *player) source(ctx context.Context, s history.Step) error {
	if p.writers || s.Do != history.Run {
		return p.run.Ordered(ctx, []history.Step{s})
	}
	n, err := p.command(ctx, p.c.source, s)
	if err == nil && n > 0 {
		p.claims.source(p, s)
	}
	return answered(err)
}

func (p *player) target(ctx context.Context, s history.Step) error {
	n, err := p.command(ctx, p.c.target, s)
	if err == nil && n > 0 {
		p.claims.target(p, s)
	}
	return answered(err)
}

// command runs a step's command; n is how many documents that changed, or 1.
func (p *player) command(ctx context.Context, c *mongo.Client, s history.Step) (n int, err error) {
	reply, err := history.Reply(ctx, c, p.base, s)
	if err != nil {
		return 0, err
	}
	switch s.Cmd.Index(0).Key() {
	case "update":
		var r struct {
			Modified int      `bson:"nModified"`
			Upserted bson.Raw `bson:"upserted"`
		}
		if err := bson.Unmarshal(reply, &r); err != nil {
			return 0, err
		}
		n = r.Modified
		if len(r.Upserted) > 0 {
			n++
		}
		return n, nil
	case "insert", "delete":
		v, _ := reply.Lookup("n").AsInt64OK()
		return int(v), nil
	}
	return 1, nil
}

// answered is nil where the server has answered.
func answered(err error) error {
	var refused mongo.ServerError
	if errors.As(err, &refused) && !mongo.IsNetworkError(err) {
		return nil
	}
	return err
}

// clone makes the target's databases what the source's are.
func (p *player) clone(ctx context.Context) error {
	at, err := p.c.pos.Positions(ctx)
	if err != nil {
		return err
	}
	p.startAt = fmt.Sprintf("%d:%d", at.Last.TS.T, at.Last.TS.I)
	for _, name := range history.Databases() {
		db := history.Name(p.base, name)
		specs, err := p.c.source.Database(db).ListCollectionSpecifications(ctx, bson.D{})
		if err != nil {
			return err
		}
		for _, spec := range specs {
			if err := p.cloneOne(ctx, db, spec); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *player) cloneOne(ctx context.Context, db string, spec mongo.CollectionSpecification) error {
	from, to := p.c.source.Database(db), p.c.target.Database(db)
	create := bson.D{{Key: "create", Value: spec.Name}}
	els, err := spec.Options.Elements()
	if err != nil {
		return err
	}
	for _, el := range els {
		create = append(create, bson.E{Key: el.Key(), Value: el.Value()})
	}
	if err := to.RunCommand(ctx, create).Err(); err != nil {
		return err
	}
	cur, err := from.RunCommandCursor(ctx, bson.D{{Key: "listIndexes", Value: spec.Name}})
	if err != nil {
		return err
	}
	var indexes []bson.Raw
	if err := cur.All(ctx, &indexes); err != nil {
		return err
	}
	if err := to.RunCommand(ctx, bson.D{{Key: "createIndexes", Value: spec.Name}, {Key: "indexes", Value: indexes}}).Err(); err != nil {
		return err
	}
	if cur, err = from.RunCommandCursor(ctx, bson.D{{Key: "find", Value: spec.Name}}); err != nil {
		return err
	}
	var docs []bson.Raw
	if err := cur.All(ctx, &docs); err != nil || len(docs) == 0 {
		return err
	}
	return to.RunCommand(ctx, bson.D{{Key: "insert", Value: spec.Name}, {Key: "documents", Value: docs}}).Err()
}

// finalize lets the job run to its end. One that ends because of somebody else
// is started again, as a supervisor does.
func (p *player) finalize(ctx context.Context) error {
	p.now = len(p.t.Events)
	for range 3 {
		if err := p.start(ctx, nil); err != nil {
			return err
		}
		err := p.cutOver(ctx)
		if !errors.Is(err, errEnded) {
			return err
		}
		if p.proc.code() == 0 {
			return nil
		}
		p.catalogs = strings.Contains(p.proc.out.tail(20), "finalized, but the target differs")
		if err := p.ended(); err != nil || p.catalogs {
			return err
		}
	}
	return nil
}

func (p *player) cutOver(ctx context.Context) error {
	for _, e := range []Event{{Do: Throttle}, {Do: Resume}} {
		if err := p.control(ctx, e); err != nil {
			return err
		}
	}
	if err := p.proc.reach(ctx, "following"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := p.proc.api(ctx).Finalize(ctx)
	select {
	case <-p.proc.done:
		return errEnded
	case <-time.After(5 * time.Second):
	}
	s, _ := p.proc.status(context.WithoutCancel(ctx))
	return fmt.Errorf("%w to finalize: phase %s, it waits for %q: %w", errStuck, s.Phase, s.Waiting, err)
}

// passes waits until the server has looked n times for what has expired.
func passes(ctx context.Context, client *mongo.Client, n int64) error {
	count := func() (int64, error) {
		var r struct {
			Metrics struct {
				TTL struct {
					Passes int64 `bson:"passes"`
				} `bson:"ttl"`
			} `bson:"metrics"`
		}
		err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&r)
		return r.Metrics.TTL.Passes, err
	}
	first, err := count()
	for last := first; err == nil && last < first+n; last, err = count() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// shrink leaves out events as long as what is left ends in the same way, some
// of them tried twice, for what happens depends on the moment.
func shrink(ctx context.Context, t Trial, fails func(Trial) bool) Trial {
	for size := (len(t.Events) + 1) / 2; size > 0 && ctx.Err() == nil; {
		removed := false
		for at := 0; at < len(t.Events) && ctx.Err() == nil; {
			smaller := t
			smaller.Events = slices.Concat(t.Events[:at], t.Events[min(at+size, len(t.Events)):])
			if fails(smaller) || fails(smaller) {
				t, removed = smaller, true
			} else {
				at += size
			}
		}
		if size > 1 {
			size /= 2
		} else if !removed {
			break
		}
	}
	return t
}
