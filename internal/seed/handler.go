package seed

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/outfile"
)

const (
	maxRequest = 16 << 10 // bytes
	// turnLimit bounds a request that waits for the frozen state or keeps a connection; the puller asks again.
	turnLimit    = 20 * time.Second
	readDeadline = 10 * time.Minute // bounds one reply of blocks
)

type turnRequest struct {
	Round  string `json:"round"`
	Puller string `json:"puller"`
}

type readRequest struct {
	ReadRequest
	Zstd bool `json:"zstd"`
}

type errorReply struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

// NewHandler serves an agent over HTTP to clients with the token. local says that it listens on loopback.
func NewHandler(a *Agent, token string, local bool) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/describe", func(w http.ResponseWriter, r *http.Request) {
		d, err := a.describe(r.Context())
		answer(w, d, err)
	})
	return serveBlocks(a, mux, token, local)
}

// served is what hands blocks to pullers on other machines: an Agent, or a Host.
type served interface {
	Join(ctx context.Context) (*Manifest, error)
	Read(ctx context.Context, r ReadRequest, fn func(Block) error) error
	Leave(ctx context.Context, round, puller string) error
	// readable returns an error before the reply to a read begins: errNotYet after a limit.
	readable(ctx context.Context, r ReadRequest, limit time.Duration) error
	// freezeWithin is Source.Freeze, with errNotYet after a limit.
	freezeWithin(ctx context.Context, round, puller string, limit time.Duration) (*Final, error)
	// stay keeps an open request of a puller, whose end shows that the puller was killed.
	stay(ctx context.Context, round, puller string, limit time.Duration) error
}

// serveBlocks adds the routes of pullers, and asks for the token.
func serveBlocks(s served, mux *http.ServeMux, token string, local bool) (http.Handler, error) {
	if token == "" {
		return nil, errors.New("seed: an agent needs a token")
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, err
	}
	mux.HandleFunc("POST /v1/read", func(w http.ResponseWriter, r *http.Request) { serveRead(s, w, r, enc) })
	mux.HandleFunc("POST /v1/join", func(w http.ResponseWriter, r *http.Request) {
		m, err := s.Join(r.Context())
		answer(w, m, err)
	})
	mux.HandleFunc("POST /v1/freeze", turn(func(ctx context.Context, q turnRequest) (any, error) {
		return s.freezeWithin(ctx, q.Round, q.Puller, turnLimit)
	}))
	mux.HandleFunc("POST /v1/stay", turn(func(ctx context.Context, q turnRequest) (any, error) {
		return struct{}{}, s.stay(ctx, q.Round, q.Puller, turnLimit)
	}))
	mux.HandleFunc("POST /v1/leave", turn(func(ctx context.Context, q turnRequest) (any, error) {
		return struct{}{}, s.Leave(ctx, q.Round, q.Puller)
	}))
	return guardHandler(mux, token, local), nil
}

// guardHandler refuses requests without the token. A foreign host on loopback is a web page whose name points
// here; no page can make a browser send JSON to another origin.
func guardHandler(next http.Handler, token string, local bool) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		switch {
		case local && !loopback.Host(r.Host):
			reply(w, http.StatusForbidden,
				errorReply{"this address is for this machine only", "use the host and port that the agent printed"})
		case subtle.ConstantTimeCompare(got[:], want[:]) != 1:
			reply(w, http.StatusUnauthorized, errorReply{"the token is wrong, or there is none",
				"give the agent's token to the puller with --token-file; one on the same machine and of the same user finds it"})
		case !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json"):
			reply(w, http.StatusUnsupportedMediaType, errorReply{Error: "want JSON"})
		default:
			r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
			next.ServeHTTP(w, r)
		}
	})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the puller asks again
}

func answer(w http.ResponseWriter, v any, err error) {
	switch {
	case err == nil:
		reply(w, http.StatusOK, v)
	case errors.Is(err, errNotYet):
		reply(w, http.StatusAccepted, struct{}{})
	case errors.Is(err, errNoRound):
		reply(w, http.StatusGone, errorReply{err.Error(), mongo.HintOf(err)})
	default:
		reply(w, http.StatusConflict, errorReply{err.Error(), mongo.HintOf(err)})
	}
}

func turn[Q any](do func(context.Context, Q) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if q := *new(Q); decode(w, r, &q) {
			v, err := do(r.Context(), q)
			answer(w, v, err)
		}
	}
}

// decode replies to a request that it cannot read.
func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		reply(w, http.StatusBadRequest, errorReply{Error: "cannot read the request"})
		return false
	}
	return true
}

func serveRead(s served, w http.ResponseWriter, r *http.Request, enc *zstd.Encoder) {
	var q readRequest
	if !decode(w, r, &q) {
		return
	}
	if err := s.readable(r.Context(), q.ReadRequest, turnLimit); err != nil {
		answer(w, nil, err)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readDeadline))
	w.Header().Set("Content-Type", "application/octet-stream")
	fw := &frameWriter{w: bufio.NewWriterSize(w, 64<<10)}
	if q.Zstd {
		fw.compress = enc
	}
	err := s.Read(r.Context(), q.ReadRequest, fw.block)
	if err != nil {
		text := err.Error()
		_ = fw.frame(frameError, 0, len(text), []byte(text))
	} else {
		_ = fw.frame(frameEnd, 0, 0, nil)
	}
	_ = fw.w.Flush() // the puller asks again
}

var errNotYet = errors.New("seed: not yet")

type remoteError struct {
	text, hint string
	status     int
}

func (e *remoteError) Error() string { return fmt.Sprintf("agent: %s", e.text) }

func (e *remoteError) Is(target error) bool {
	return target == errNoRound && e.status == http.StatusGone
}

// ReadToken reads an agent's secret from a file that only its owner can read.
func ReadToken(name string) (string, error) {
	info, err := os.Stat(name)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		return "", mongo.WithHint(fmt.Errorf("cannot use the token file %s: other users can read or write it", name),
			"chmod 600 "+name)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 16 {
		return "", mongo.WithHint(fmt.Errorf("the token in %s is too short", name),
			"make one of 16 characters or more: openssl rand -hex 32")
	}
	return token, nil
}

// TokenFile returns the file below dir with the token of an agent that listens on address, host:port on loopback.
func TokenFile(dir, address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		port = "default"
	}
	return filepath.Join(dir, "seed-"+filepath.Base(port)+".token")
}

// WriteToken makes a token and writes it to a file for its owner alone. remove removes the file, unless another
// agent has replaced it.
func WriteToken(name string) (token string, remove func() error, err error) {
	token = rand.Text()
	if err = os.MkdirAll(filepath.Dir(name), 0o700); err == nil {
		err = outfile.Replace(name, func(f *os.File) error { _, err := f.WriteString(token + "\n"); return err })
	}
	if err != nil {
		return "", nil, fmt.Errorf("cannot write the token: %w", err)
	}
	return token, func() error {
		if now, err := ReadToken(name); err != nil || now != token {
			return nil //nolint:nilerr // it is gone, or no longer ours
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove the token: %w", err)
		}
		return nil
	}, nil
}
