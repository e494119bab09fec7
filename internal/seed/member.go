package seed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/spawn"
)

// startMember starts the new member, adds it to the set if asked, and waits until it has caught up.
// The mongod runs on after this process.
func startMember(ctx context.Context, o Options, res *Result) error {
	m := o.Member
	o.Pull.Stats.enter(PhaseMember, 0)
	began := time.Now()
	out, err := os.OpenFile(m.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("seed: cannot open the output of the new member: %w", err)
	}
	defer out.Close()
	command := m.startCommand()
	cmd := spawn.Command(command[0], command[1:]...) // it runs on
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = out, out, apart()
	if err := cmd.Start(); err != nil {
		return mongo.WithHint(fmt.Errorf("seed: cannot start the new member: %w", err),
			"the copy is complete: start the member by hand")
	}
	res.Pid = cmd.Process.Pid
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with the mongod or with this process
		if err := cmd.Wait(); err != nil || !slices.Contains(m.Command, "--fork") {
			err = cmp.Or(err, errors.New("without an error"))
			cancel(mongo.WithHint(fmt.Errorf("seed: the new member ended: %w; its output ends with: %s", err,
				tailOf(m.LogPath)), "the copy is complete: start the member by hand"))
		}
	}()
	err = follow(run, o, res, began)
	if cause := context.Cause(run); err != nil && cause != nil {
		return errors.Join(cause, err)
	}
	return err
}

func follow(ctx context.Context, o Options, res *Result, began time.Time) error {
	address := cmp.Or(o.Member.Join, o.Member.Replace)
	if o.Member.NewSet != "" {
		address = o.Member.NewSetHost
	}
	if address == "" {
		return nil // its address is not known
	}
	res.Member = address
	c, err := awaitServer(ctx, o.Member, address, &res.Times)
	if err != nil {
		return err
	}
	defer func() { _ = c.Disconnect(context.WithoutCancel(ctx)) }()
	res.StartSeconds = time.Since(began).Seconds()
	o.Pull.Stats.enter(PhaseCatchUp, 0)
	began = time.Now()
	switch {
	case o.Member.NewSet != "":
		o.stopExpiring(ctx, c)
		err = initiate(ctx, c, o.Member.NewSet, address)
	case o.Member.Replace != "":
		err = rejoin(ctx, c, o.Member, &res.Times)
	default:
		err = join(ctx, c, o.Member, &res.Times)
	}
	res.CatchUpSeconds = time.Since(began).Seconds()
	return err
}

// soon is the interval for what takes a second or two.
const soon = 20 * time.Millisecond

// errBadURI hides the parser's error, which may quote secrets.
var errBadURI = errors.New("seed: the connection string cannot be used")

func awaitServer(ctx context.Context, o MemberOptions, address string, took *MemberTimes) (*driver.Client, error) {
	began := time.Now()
	// After a refused connection a driver retries only every 500 ms.
	err := pace.Until(ctx, soon, func() (bool, error) {
		conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", address)
		if err != nil {
			return false, nil //nolint:nilerr // it does not listen yet
		}
		return true, conn.Close()
	})
	if err != nil {
		return nil, fmt.Errorf("seed: the new member at %s does not answer: %w", address, err)
	}
	took.Listen = lap(&began)
	opts := options.Client()
	if o.SetURI != "" {
		if opts, err = mongo.ParseURI(o.SetURI); err != nil { // for its users and TLS
			return nil, fmt.Errorf("seed: %w", err)
		}
	}
	opts.SetHosts([]string{address}).SetDirect(true).SetServerSelectionTimeout(2 * time.Second).SetAppName("millrace-seed")
	opts.ReplicaSet = nil
	c, err := driver.Connect(opts)
	if err != nil {
		return nil, errBadURI
	}
	err = pace.Until(ctx, soon, func() (bool, error) {
		_, err := hello(ctx, c) // without login: users may not be there yet
		return err == nil, nil
	})
	took.Answer = lap(&began)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("seed: the new member at %s does not answer: %w", address, err),
			c.Disconnect(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// lap returns the seconds since a moment, which it sets to now.
func lap(since *time.Time) float64 {
	now := time.Now()
	took := now.Sub(*since).Seconds()
	*since = now
	return took
}

func initiate(ctx context.Context, c *driver.Client, name, address string) error {
	cfg := bson.D{{Key: "_id", Value: name},
		{Key: "members", Value: bson.A{bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: address}}}}}
	err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: cfg}}).Err()
	if err != nil {
		return mongo.WithHint(fmt.Errorf("seed: cannot initiate the set %s: %w", name, err),
			"the copy is complete: initiate the set by hand")
	}
	return pace.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		h, err := hello(ctx, c) // connections end when a set begins
		return err == nil && h.Primary, nil
	})
}

// join adds the new member, without vote and priority until it has caught up.
func join(ctx context.Context, c *driver.Client, o MemberOptions, took *MemberTimes) error {
	began := time.Now()
	set, err := connectSet(ctx, o.SetURI)
	if err != nil {
		return err
	}
	defer func() { _ = set.Disconnect(context.WithoutCancel(ctx)) }()
	if err := addMember(ctx, set, o.Join, o.Hidden); err != nil {
		return err
	}
	took.Add = lap(&began)
	wait, cancel := context.WithTimeoutCause(ctx, o.CatchUp, mongo.WithHint(
		fmt.Errorf("seed: the new member was added, but was no secondary after %s", o.CatchUp),
		"read its log and rs.status(); it has no vote yet"))
	defer cancel()
	if err := awaitSecondary(wait, c, set, o.Join, took); err != nil {
		return err
	}
	if o.Votes == 0 && o.Priority == 0 {
		return nil
	}
	began = time.Now()
	defer func() { took.Vote = lap(&began) }()
	return reconfigure(ctx, set, func(cfg *replConfig) error {
		m := cfg.find(o.Join)
		if m == nil {
			return fmt.Errorf("seed: %s is no member any more", o.Join)
		}
		var votes int32
		for _, m := range cfg.Members {
			votes += m.Votes
		}
		if o.Votes > 0 && m.Votes == 0 && votes >= 7 {
			return mongo.WithHint(errors.New("seed: the set has seven voting members already"),
				"the new one stays without a vote")
		}
		m.Votes, m.Priority = int32(min(o.Votes, 1)), o.Priority
		return nil
	})
}

func connectSet(ctx context.Context, uri string) (*driver.Client, error) {
	opts, err := mongo.ParseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}
	opts.SetServerSelectionTimeout(selectionWait).SetDirect(len(opts.Hosts) == 1)
	one, err := driver.Connect(opts)
	if err != nil {
		return nil, errBadURI
	}
	h, err := hello(ctx, one)
	_ = one.Disconnect(context.WithoutCancel(ctx))
	if err != nil {
		return nil, fmt.Errorf("seed: cannot connect to %s: %w", mongo.Redact(uri), err)
	}
	opts.SetDirect(false).SetHosts(h.Hosts).SetReplicaSet(h.SetName).SetServerSelectionTimeout(30 * time.Second).
		SetAppName("millrace-seed")
	c, err := driver.Connect(opts)
	if err != nil {
		return nil, fmt.Errorf("seed: cannot connect to the set %s: %w", h.SetName, err)
	}
	return c, nil
}

// replConfig is a set's configuration; Rest keeps unknown fields.
type replConfig struct {
	Version  int64        `bson:"version"`
	Members  []replMember `bson:"members"`
	Settings bson.Raw     `bson:"settings,omitempty"`
	Rest     bson.M       `bson:",inline"`
}

type replMember struct {
	ID       int32   `bson:"_id"`
	Host     string  `bson:"host"`
	Votes    int32   `bson:"votes"`
	Priority float64 `bson:"priority"`
	Rest     bson.M  `bson:",inline"`
}

func (c *replConfig) find(host string) *replMember {
	i := slices.IndexFunc(c.Members, func(m replMember) bool { return m.Host == host })
	if i < 0 {
		return nil
	}
	return &c.Members[i]
}

func addMember(ctx context.Context, set *driver.Client, host string, hidden bool) error {
	return reconfigure(ctx, set, func(cfg *replConfig) error {
		if cfg.find(host) != nil {
			return errUnchanged
		}
		added := replMember{Host: host}
		for _, m := range cfg.Members {
			added.ID = max(added.ID, m.ID+1)
		}
		if hidden {
			added.Rest = bson.M{"hidden": true}
		}
		cfg.Members = append(cfg.Members, added)
		return nil
	})
}

var errUnchanged = errors.New("nothing to change")

// Replies to a change of a configuration that is being replaced.
const (
	codeConfigInProgress   = 109 // ConfigurationInProgress
	codeNewConfigOutdated  = 103 // NewReplicaSetConfigurationIncompatible: a version that is not newer
	codeConfigNotCommitted = 308 // CurrentConfigNotCommittedYet
)

// reconfigure changes the set's configuration. change may be called again, and then see its own result.
func reconfigure(ctx context.Context, set *driver.Client, change func(*replConfig) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last error
	err := pace.Until(ctx, 200*time.Millisecond, func() (bool, error) {
		cfg, err := mongo.ReadSetConfig[replConfig](ctx, set)
		if err == nil {
			err = change(&cfg)
		}
		if err == nil {
			cfg.Version++
			err = set.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetReconfig", Value: cfg}}).Err()
		}
		switch {
		case err == nil, errors.Is(err, errUnchanged):
			return true, nil
		case mongo.IsCode(err, codeConfigInProgress), mongo.IsCode(err, codeConfigNotCommitted),
			mongo.Classify(err) == mongo.ClassRetry,
			mongo.IsCode(err, codeNewConfigOutdated) && strings.Contains(err.Error(), "version"):
			last = err
			return false, nil
		}
		return false, err
	})
	if err != nil {
		return mongo.NeedsRole(fmt.Errorf("seed: cannot change the set's configuration: %w", errors.Join(err, last)),
			"the user needs the role clusterManager")
	}
	return nil
}

// awaitSecondary waits until the member is a secondary that has applied what the primary had when it became one.
func awaitSecondary(ctx context.Context, c, set *driver.Client, host string, took *MemberTimes) error {
	var goal mongo.OpTime
	var seen string
	began := time.Now()
	defer func() { took.Apply = lap(&began) }()
	err := pace.Until(ctx, soon, func() (bool, error) {
		st, err := mongo.ReadSetStatus(ctx, c)
		m := st.Self()
		if err != nil || m.State == "" {
			return false, nil //nolint:nilerr // it learns of the set by its first heartbeat
		}
		if seen = m.State; seen != mongo.StateSecondary {
			return false, nil
		}
		if took.Secondary == 0 {
			took.Secondary = lap(&began)
		}
		if took.Choose == 0 && st.Source() != "" {
			took.Choose = lap(&began)
		}
		if goal.IsZero() {
			st, _ := mongo.ReadSetStatus(ctx, set) // zero until it is known
			goal = st.Primary().Applied
		}
		return !goal.IsZero() && !m.Applied.Before(goal), nil
	})
	if err != nil {
		return fmt.Errorf("%s has not caught up (last state %q): %w", host, seen, err)
	}
	return nil
}
