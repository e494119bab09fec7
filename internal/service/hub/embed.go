package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/mongo"
)

const (
	// maxPayload bounds a message, such as a report of many collections.
	maxPayload = 4 << 20
	maxStore   = 8 << 30
	// syncEvery bounds what a power cut loses: definitions, never data.
	syncEvery = 2 * time.Second
	startTime = time.Minute
)

// EmbedOptions shape a NATS server in this process.
type EmbedOptions struct {
	// Dir is created, for its owner alone.
	Dir string
	// Host and Port are for workers elsewhere. Host "" does not listen, Port -1 takes a free one.
	Host string
	Port int
	// Token is required of clients.
	Token string
	// TLS nil does not encrypt.
	TLS *tls.Config
	Log *slog.Logger
}

// Embedded is a NATS server in this process. It restarts after its disk was full.
type Embedded struct {
	o    EmbedOptions
	lock *os.File
	end  context.CancelFunc
	done chan struct{} // closed when lookAfter returns

	mu      sync.Mutex
	server  *server.Server
	trouble error // why nothing can be stored, else nil
}

// Embed starts a NATS server and locks its directory.
func Embed(ctx context.Context, o EmbedOptions) (_ *Embedded, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start NATS in %s: %w", o.Dir, err)
		}
	}()
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	e := &Embedded{o: o, lock: lock, done: make(chan struct{})}
	if err = writable(o.Dir); err == nil {
		err = e.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if o.Port < 0 { // keep the port over restarts
		if a, ok := e.server.Addr().(*net.TCPAddr); ok {
			e.o.Port = a.Port
		}
	}
	looking, end := context.WithCancel(context.WithoutCancel(ctx))
	e.end = end
	go func() { defer close(e.done); e.lookAfter(looking) }()
	return e, nil
}

// start returns once the server is ready.
func (e *Embedded) start(ctx context.Context) error {
	o := &e.o
	s, err := server.NewServer(&server.Options{
		ServerName: "millrace", StoreDir: o.Dir, JetStream: true,
		DontListen: o.Host == "", Host: o.Host, Port: o.Port, Authorization: o.Token,
		TLSConfig: o.TLS, TLS: o.TLS != nil,
		NoSigs: true, NoSystemAccount: false, DisableJetStreamBanner: true,
		MaxPayload: maxPayload, JetStreamMaxStore: maxStore, JetStreamMaxMemory: 64 << 20, SyncInterval: syncEvery,
	})
	if err != nil {
		return err
	}
	fatal := make(chan string, 1)
	s.SetLoggerV2(serverLog{o.Log, fatal}, false, false, false)
	go s.Start() // returns once it is up
	e.mu.Lock()
	e.server = s
	e.mu.Unlock()
	err = e.up(ctx, s, fatal)
	if err != nil {
		e.stop()
	}
	return err
}

func (e *Embedded) up(ctx context.Context, s *server.Server, fatal <-chan string) error {
	late := time.After(startTime)
	for !s.ReadyForConnections(100 * time.Millisecond) {
		select {
		case why := <-fatal: // the server hangs then
			return mongo.WithHint(errors.New(why),
				"a port that another program uses is changed with --nats-listen; port 0 takes a free one")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late:
			return mongo.WithHint(fmt.Errorf("it is not ready after %s", startTime),
				"the log says why; the directory may lie on a full or very slow disk")
		default:
		}
	}
	if !s.JetStreamEnabled() {
		return mongo.WithHint(errors.New("JetStream did not start"), "check that the directory can be written and has room")
	}
	return nil
}

func (e *Embedded) stop() {
	s := e.running()
	s.Shutdown()
	s.WaitForShutdown()
}

func (e *Embedded) running() *server.Server {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.server
}

func (e *Embedded) InProcessConn() (net.Conn, error) { return e.running().InProcessConn() }

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(mongo.WithHint(fmt.Errorf("another process uses the directory: %w", err),
			"give this one another --data-dir, or end the other"), f.Close())
	}
	return f, nil
}

// Address returns the address that it listens on, "" for none.
func (e *Embedded) Address() string {
	if a := e.running().Addr(); a != nil {
		return a.String()
	}
	return ""
}

// Close ends the server, and returns when all is written.
func (e *Embedded) Close() {
	e.end()
	<-e.done
	e.stop()
	_ = e.lock.Close()
}

// serverLog logs errors as warnings, because the server goes on, and sends the first fatal one.
type serverLog struct {
	log   *slog.Logger
	fatal chan<- string
}

func (l serverLog) say(level slog.Level, format string, v []any) {
	l.log.Log(context.Background(), level, "nats: "+fmt.Sprintf(format, v...))
}

// Noticef and the others implement server.Logger.
// The methods of server.Logger.

func (l serverLog) Noticef(format string, v ...any) { l.say(slog.LevelDebug, format, v) }
func (l serverLog) Warnf(format string, v ...any)   { l.say(slog.LevelDebug, format, v) }
func (l serverLog) Errorf(format string, v ...any)  { l.say(slog.LevelWarn, format, v) }
func (l serverLog) Debugf(string, ...any)           {}
func (l serverLog) Tracef(string, ...any)           {}
func (l serverLog) Fatalf(format string, v ...any) {
	l.say(slog.LevelError, format, v)
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}
