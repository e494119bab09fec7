package seed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/spawn"
)

// keepRunning starts the operator's mongod, and again whenever it has ended, until ctx ends. The mongod runs on.
func (h *Host) keepRunning(ctx context.Context, kept hostFile) error {
	o := h.options(kept.Order.Formation.Set)
	for ctx.Err() == nil {
		switch listens, free := h.listens(ctx), h.free(); {
		case listens:
			h.fail(nil)
		case free:
			if err := h.startOnce(ctx, o); err != nil {
				return err
			}
		}
		_ = pace.Pause(ctx, 500*time.Millisecond)
	}
	return ctx.Err()
}

func (h *Host) listens(ctx context.Context) bool {
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", h.o.Own.Host)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// free reports that no mongod has the directory, also none that starts or recovers.
func (h *Host) free() bool {
	root, err := os.OpenRoot(h.o.DBPath)
	if err != nil {
		return true // the mongod reports it
	}
	defer root.Close()
	return checkFree(root) == nil
}

// startOnce returns when the mongod listens, or has ended.
func (h *Host) startOnce(ctx context.Context, o Options) error {
	h.stats.enter(PhaseMember, 0)
	out, err := os.OpenFile(o.Member.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("seed: cannot open the output of the mongod: %w", err)
	}
	defer out.Close()
	command := o.Member.startCommand()
	cmd := spawn.Command(command[0], command[1:]...) // it runs on
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = out, out, apart()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("seed: cannot start the mongod: %w", err)
	}
	h.o.Log.Info("started the mongod", "pid", cmd.Process.Pid, "output", o.Member.LogPath)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the mongod or with this process
	forks := slices.Contains(command, "--fork")
	for !h.listens(ctx) {
		select {
		case err := <-ended:
			if err == nil && forks {
				ended = nil
				continue
			}
			return mongo.WithHint(fmt.Errorf("seed: the mongod ended: %w; its output ends with: %s",
				errors.Join(err, errEnded), tailOf(o.Member.LogPath)), "correct what it says; the agent starts it again")
		case <-time.After(soon):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

var errEnded = errors.New("it does not listen")

// source is what serves pullers now.
func (h *Host) source() served {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.copied != nil {
		return h.copied
	}
	return h.relay
}

// Join implements served.
func (h *Host) Join(ctx context.Context) (*Manifest, error) { return h.source().Join(ctx) }

// Read implements served.
func (h *Host) Read(ctx context.Context, q ReadRequest, fn func(Block) error) error {
	return h.source().Read(ctx, q, fn)
}

// Leave implements served.
func (h *Host) Leave(ctx context.Context, round, puller string) error {
	return h.source().Leave(ctx, round, puller)
}

func (h *Host) readable(ctx context.Context, q ReadRequest, limit time.Duration) error {
	return h.source().readable(ctx, q, limit)
}

func (h *Host) freezeWithin(ctx context.Context, round, puller string, limit time.Duration) (*Final, error) {
	return h.source().freezeWithin(ctx, round, puller, limit)
}

func (h *Host) stay(ctx context.Context, round, puller string, limit time.Duration) error {
	return h.source().stay(ctx, round, puller, limit)
}

type checkRequest struct {
	Plan *Plan  `json:"plan"`
	Set  string `json:"set"`
}

type advanceRequest struct {
	ID string `json:"id"`
	To Stage  `json:"to"`
}

type paceRequest struct {
	Bytes  int64 `json:"bytes"`
	Paused bool  `json:"paused"`
}

// NewHostHandler serves a host over HTTP to clients with the token. local says that it listens on loopback.
func NewHostHandler(h *Host, token string, local bool) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/state", turn(func(context.Context, struct{}) (any, error) { return h.State(), nil }))
	mux.HandleFunc("POST /v1/check", turn(func(ctx context.Context, q checkRequest) (any, error) {
		if q.Plan == nil {
			return nil, errors.New("seed: the check has no plan")
		}
		return h.Check(ctx, q.Plan, q.Set), nil
	}))
	mux.HandleFunc("POST /v1/order", turn(func(_ context.Context, q Order) (any, error) { return struct{}{}, h.Obey(q) }))
	mux.HandleFunc("POST /v1/advance", turn(func(_ context.Context, q advanceRequest) (any, error) {
		return struct{}{}, h.Advance(q.ID, q.To)
	}))
	mux.HandleFunc("POST /v1/pace", turn(func(_ context.Context, q paceRequest) (any, error) {
		return struct{}{}, h.SetPace(q.Bytes, q.Paused)
	}))
	return serveBlocks(h, mux, token, local)
}

// Describe returns what a copy of a source agent's member would be.
func (c *Client) Describe(ctx context.Context) (*Plan, error) {
	return ask[Plan](ctx, c, "describe", struct{}{})
}

// State returns how far a host is. It does not retry.
func (c *Client) State(ctx context.Context) (*HostState, error) {
	once := *c
	once.o.RetryFor = 0
	return ask[HostState](ctx, &once, "state", struct{}{})
}

// Check returns a plan with the checks of a host.
func (c *Client) Check(ctx context.Context, p *Plan, set string) (*Plan, error) {
	return ask[Plan](ctx, c, "check", checkRequest{p, set})
}

// Order has a host copy files.
func (c *Client) Order(ctx context.Context, o Order) error {
	_, err := ask[struct{}](ctx, c, "order", o)
	return err
}

// Advance has a host leave a state.
func (c *Client) Advance(ctx context.Context, id string, to Stage) error {
	_, err := ask[struct{}](ctx, c, "advance", advanceRequest{id, to})
	return err
}

// SetPace limits and pauses the copy of a host.
func (c *Client) SetPace(ctx context.Context, bytes int64, paused bool) error {
	_, err := ask[struct{}](ctx, c, "pace", paceRequest{bytes, paused})
	return err
}
