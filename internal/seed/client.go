package seed

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/server"
)

// ClientOptions are how to connect to an agent.
type ClientOptions struct {
	URL string // https://host:port
	// TokenFile holds the agent's token. Each request reads it: a restarted agent may have made another.
	TokenFile string
	CA        string // file with the authority of the agent's certificate; empty is the system's
	Zstd      bool
	RetryFor  time.Duration // while the network fails; default five minutes
	Log       *slog.Logger
}

// Client is an agent on another machine. It is safe for concurrent use.
type Client struct {
	o      ClientOptions
	http   *http.Client
	unpack *zstd.Decoder
}

// NewClient makes a client; it does not connect yet.
func NewClient(o ClientOptions) (*Client, error) {
	o.RetryFor = cmp.Or(max(o.RetryFor, 0), 5*time.Minute)
	o.URL, o.Log = strings.TrimRight(o.URL, "/"), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if err := server.TrustAuthorities(conf, o.CA); err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}
	unpack, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(4*uint64(largestBlock)))
	if err != nil {
		return nil, err
	}
	return &Client{o: o, unpack: unpack, http: &http.Client{
		Transport: &http.Transport{TLSClientConfig: conf, MaxIdleConnsPerHost: 16, ResponseHeaderTimeout: 5 * time.Minute,
			TLSHandshakeTimeout: 15 * time.Second, DisableCompression: true},
		// A redirect would carry the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes idle connections. No request may be under way.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.unpack.Close()
}

func (c *Client) Join(ctx context.Context) (*Manifest, error) {
	return ask[Manifest](ctx, c, "join", struct{}{})
}

func (c *Client) Freeze(ctx context.Context, round, puller string) (*Final, error) {
	return ask[Final](ctx, c, "freeze", turnRequest{round, puller})
}

// Stay keeps a connection to the agent until ctx ends: its end shows the agent that this puller was killed.
func (c *Client) Stay(ctx context.Context, round, puller string) error {
	for {
		if _, err := ask[struct{}](ctx, c, "stay", turnRequest{round, puller}); err != nil {
			return err
		}
	}
}

func (c *Client) Leave(ctx context.Context, round, puller string) error {
	_, err := ask[struct{}](ctx, c, "leave", turnRequest{round, puller})
	return err
}

// Read implements Source. When a reply was cut it asks for the rest.
func (c *Client) Read(ctx context.Context, r ReadRequest, fn func(Block) error) error {
	var own error // of fn
	err := c.retry(ctx, func() error {
		if len(r.Have) == 0 {
			return nil // only the reply's end was cut off
		}
		resp, err := c.post(ctx, "read", readRequest{r, c.o.Zstd})
		for err == nil && resp.StatusCode == http.StatusAccepted { // the agent does not have them yet
			_ = resp.Body.Close()
			resp, err = c.post(ctx, "read", readRequest{r, c.o.Zstd})
		}
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		err = readFrames(resp.Body, r.First, len(r.Have), c.unpack, func(b Block) error {
			own = fn(b)
			r.First, r.Have = b.Index+1, r.Have[1:]
			return own
		})
		if own != nil {
			return nil // it is no failure of the network
		}
		return err
	})
	return cmp.Or(own, err)
}

// ask sends a request until the agent's reply is more than "not yet".
func ask[T any](ctx context.Context, c *Client, what string, q any) (*T, error) {
	for {
		into := new(T)
		var status int
		err := c.retry(ctx, func() error {
			resp, err := c.post(ctx, what, q)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			status = resp.StatusCode
			const most = 1 << 30 // bytes; a manifest of 100,000 files has some 10 MB
			if err := json.NewDecoder(io.LimitReader(resp.Body, most)).Decode(into); err != nil {
				return fmt.Errorf("seed: cannot read the agent's reply: %w", err)
			}
			return nil
		})
		if err != nil || status != http.StatusAccepted {
			return into, err
		}
	}
}

// post returns the agent's error as a remoteError.
func (c *Client) post(ctx context.Context, what string, q any) (*http.Response, error) {
	token, err := ReadToken(c.o.TokenFile)
	if err != nil {
		return nil, err
	}
	resp, err := server.Send(ctx, c.http,
		server.Request{Method: http.MethodPost, URL: c.o.URL + "/v1/" + what, Token: token, What: q})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusAccepted {
		return resp, nil
	}
	defer resp.Body.Close()
	var failed errorReply
	if json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&failed) != nil || failed.Error == "" {
		failed.Error = resp.Status
	}
	return nil, &remoteError{text: failed.Error, hint: failed.Hint, status: resp.StatusCode}
}

func (c *Client) retry(ctx context.Context, try func() error) error {
	giveUp := time.Now().Add(c.o.RetryFor)
	var remote *remoteError
	err := retry.Again(ctx, 100*time.Millisecond, 5*time.Second, func(err error, _ time.Duration) bool {
		if ctx.Err() != nil || errors.As(err, &remote) || isCertificate(err) || time.Now().After(giveUp) {
			return false
		}
		c.o.Log.Warn("cannot reach the agent; retrying", "error", err)
		return true
	}, try)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case remote != nil:
		return mongo.WithHint(err, remote.hint)
	case isCertificate(err):
		return mongo.WithHint(fmt.Errorf("seed: the agent's certificate is not accepted: %w", err),
			"name its authority with --ca-file")
	}
	return mongo.WithHint(fmt.Errorf("seed: cannot reach the agent: %w", err),
		"check that it runs and can be reached; the same command uses what is there")
}

func isCertificate(err error) bool {
	_, is := errors.AsType[*tls.CertificateVerificationError](err)
	return is
}

// The blocks of a reply are frames: kind, checksum, length, bytes. A reply without frameEnd was cut.
const (
	frameEnd byte = iota
	frameRaw
	frameZstd
	frameSame
	frameZero // length zeros, none of them sent
	frameError
)

const frameHead = 1 + 8 + 4

type frameWriter struct {
	w        *bufio.Writer
	compress *zstd.Encoder // nil does not compress
	packed   []byte
}

func (w *frameWriter) frame(kind byte, sum Sum, length int, payload []byte) error {
	var head [frameHead]byte
	head[0] = kind
	binary.LittleEndian.PutUint64(head[1:], uint64(sum))
	binary.LittleEndian.PutUint32(head[9:], uint32(length))
	if _, err := w.w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.w.Write(payload)
	return err
}

func (w *frameWriter) block(b Block) error {
	switch {
	case b.Same:
		return w.frame(frameSame, b.Sum, 0, nil)
	case isZero(b.Data):
		return w.frame(frameZero, b.Sum, len(b.Data), nil)
	case w.compress != nil:
		w.packed = w.compress.EncodeAll(b.Data, w.packed[:0])
		if len(w.packed) < len(b.Data) {
			return w.frame(frameZstd, b.Sum, len(w.packed), w.packed)
		}
	}
	return w.frame(frameRaw, b.Sum, len(b.Data), b.Data)
}

// readFrames reads consecutive blocks from first on. It checks what it reads: the agent may be anyone.
func readFrames(r io.Reader, first int64, count int, unpack *zstd.Decoder, fn func(Block) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var head [frameHead]byte
	var buf, data []byte
	for i := 0; ; i++ {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return fmt.Errorf("seed: the agent's reply was cut: %w", err)
		}
		kind, length := head[0], int64(binary.LittleEndian.Uint32(head[9:]))
		b := Block{Index: first + int64(i), Sum: Sum(binary.LittleEndian.Uint64(head[1:]))}
		if kind == frameEnd {
			return nil
		}
		if i >= count && kind != frameError || length > int64(largestBlock) {
			return errors.New("seed: the agent's reply is malformed")
		}
		buf = slices.Grow(buf[:0], int(length))
		if kind != frameSame && kind != frameZero {
			if _, err := io.ReadFull(in, buf[:length]); err != nil {
				return fmt.Errorf("seed: the agent's reply was cut: %w", err)
			}
		}
		switch kind {
		case frameSame:
			b.Same = true
		case frameZero, frameRaw:
			if b.Data = buf[:length]; kind == frameZero {
				clear(b.Data)
			}
		case frameZstd:
			var err error
			if data, err = unpack.DecodeAll(buf[:length], data[:0]); err != nil || int64(len(data)) > int64(largestBlock) {
				return fmt.Errorf("seed: cannot decompress the agent's reply: %w", cmp.Or(err, errors.New("without an error")))
			}
			b.Data = data
		case frameError:
			return &remoteError{text: string(buf[:length])}
		default:
			return errors.New("seed: the agent's reply is malformed")
		}
		if err := fn(b); err != nil {
			return err
		}
	}
}
