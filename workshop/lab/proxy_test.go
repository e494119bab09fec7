package lab

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/test/kit"
)

// echo is a server that sends back what it gets, and a proxy before it.
func echo(t *testing.T) *Proxy {
	t.Helper()
	return echoTo(t, client, 0)
}

// echoTo is echo for a peer, with a latency between members.
func echoTo(t *testing.T, peer int, latency time.Duration) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", hostPort(0))
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends when the proxy hangs up
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	p, err := newProxy(0, l.Addr().String(), func(net.Conn) int { return peer }, latency)
	must(t, err)
	t.Cleanup(func() {
		p.close()
		_ = l.Close()
		<-done
	})
	return p
}

// The latency between members is theirs alone, and the only fault they have.
func TestPeerLatency(t *testing.T) {
	const latency = 50 * time.Millisecond
	p := echoTo(t, 1, latency)
	p.Stall() // for clients
	began := time.Now()
	must(t, roundTrip(dial(t, p), 100))
	if took := time.Since(began); took < latency {
		t.Errorf("a member's round trip took %v", took)
	}
}

// Latency of less than a millisecond is not rounded up to one: sooner or later
// a round trip says so, whatever else the machine does.
func TestPeerLatencyIsFine(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the runtime's timers are too coarse")
	}
	const latency = 100 * time.Microsecond
	conn := dial(t, echoTo(t, 1, latency))
	for began := time.Now(); ; {
		sent := time.Now()
		must(t, roundTrip(conn, 1))
		took := time.Since(sent)
		switch {
		case took < latency:
			t.Fatalf("a round trip took %v", took)
		case took < time.Millisecond:
			return
		case time.Since(began) > time.Minute:
			t.Fatal("all round trips take a millisecond and more")
		}
	}
}

// dial connects to a proxy.
func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// roundTrip sends bytes and reads them back.
func roundTrip(conn net.Conn, n int) error {
	sent := bytes.Repeat([]byte("x"), n)
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		wrote <- err
	}()
	got := make([]byte, n)
	_, err := io.ReadFull(conn, got)
	if err != nil {
		_ = conn.Close() // ends the writer
	}
	return errors.Join(err, <-wrote)
}

func TestProxyDelays(t *testing.T) {
	p := echo(t)
	conn := dial(t, p)
	must(t, roundTrip(conn, 1<<20))
	p.Latency(50*time.Millisecond, 0)
	begin := time.Now()
	must(t, roundTrip(conn, 1))
	if took := time.Since(begin); took < 50*time.Millisecond {
		t.Errorf("an answer came after %s, before it could", took)
	}
	p.Latency(10*time.Millisecond, 5*time.Millisecond)
	must(t, roundTrip(conn, 1<<16))
	p.Latency(0, 0)
	must(t, roundTrip(conn, 1<<20))
}

func TestProxyLimitsBandwidth(t *testing.T) {
	p := echo(t)
	conn := dial(t, p)
	p.Bandwidth(1000)
	begin := time.Now()
	must(t, roundTrip(conn, 200_000))
	if took := time.Since(begin); took < 100*time.Millisecond {
		t.Errorf("200 kB at 1000 kB/s took %s", took)
	}
	p.Bandwidth(0)
	must(t, roundTrip(conn, 1<<20))
}

func TestProxyCuts(t *testing.T) {
	p := echo(t)
	for name, fault := range map[string]struct {
		do      func()
		refuses bool
	}{"cut": {p.Cut, true}, "reset": {p.Reset, false}} {
		conn := dial(t, p)
		must(t, roundTrip(conn, 10))
		fault.do()
		if err := roundTrip(conn, 10); err == nil {
			t.Errorf("%s: the connection works still", name)
		}
		again, err := net.Dial("tcp", p.Addr()) // may be dropped this early
		if err == nil {
			err = roundTrip(again, 10)
			_ = again.Close()
		}
		if (err != nil) != fault.refuses {
			t.Errorf("%s: a new connection: %v", name, err)
		}
		p.Restore()
		must(t, roundTrip(dial(t, p), 10))
	}
}

func TestProxyStalls(t *testing.T) {
	p := echo(t)
	conn := dial(t, p)
	must(t, roundTrip(conn, 10))
	p.Stall()
	_, err := conn.Write([]byte("held"))
	must(t, err)
	must(t, conn.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	got := make([]byte, 4)
	var timeout net.Error
	if _, err := conn.Read(got); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("on a stalled connection: %q, %v", got, err)
	}
	p.Latency(time.Millisecond, 0) // faults can change meanwhile
	p.Restore()
	must(t, conn.SetReadDeadline(time.Time{}))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "held" {
		t.Errorf("after it: %q, %v", got, err)
	}
}

// Changes of faults while connections come, work and break must neither hang
// nor race.
func TestProxyFaultsUnderLoad(t *testing.T) {
	p := echo(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for ctx.Err() == nil {
				conn, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				for ctx.Err() == nil && roundTrip(conn, 100_000) == nil {
				}
				_ = conn.Close()
			}
		}()
	}
	for range 20 {
		p.Latency(time.Millisecond, time.Millisecond)
		must(t, roundTrip(dial(t, p), 100_000))
		p.Bandwidth(50_000)
		must(t, roundTrip(dial(t, p), 100_000))
		p.Reset()
		p.Stall()
		p.Cut()
		p.Restore()
		must(t, roundTrip(dial(t, p), 100_000))
	}
	cancel()
	p.Cut()
	for range 4 {
		<-done
	}
}

// A cut must hit the client alone: writes that others make still reach the
// member, which stays secondary.
func TestCutSparesReplication(t *testing.T) {
	Nightly(t)
	t.Parallel()
	c := ForTest(t, Options{Topology: "rs:3", Proxy: true})
	for _, m := range c.Members() {
		m.Proxy().Latency(20*time.Millisecond, 0)
		if m.Proxy().Addr() == m.Host() {
			t.Error("the proxy has the member's address")
		}
	}
	writer := connect(t, c.URI())
	mustInsert(t, writer, "slow")
	primary := mustPrimary(t, c)
	cut := (primary + 1) % 3
	c.Members()[cut].Proxy().Cut()
	all := &writeconcern.WriteConcern{W: 3}
	must(t, insert(t.Context(), writer, "reaches all", all))

	through := connect(t, "mongodb://"+c.Members()[cut].Proxy().Addr()+
		"/?directConnection=true&serverSelectionTimeoutMS=300")
	if err := through.Ping(t.Context(), nil); err == nil {
		t.Error("a client gets through")
	}
	c.Members()[cut].Proxy().Restore()
	kit.Until(t, "the client gets through again", func() bool { return through.Ping(t.Context(), nil) == nil })
}

// An isolated primary takes writes that roll back after it has rejoined.
func TestIsolatedPrimaryRollsBack(t *testing.T) {
	Nightly(t)
	t.Parallel()
	c := ForTest(t, Options{Topology: "rs:3", Proxy: true})
	old := mustPrimary(t, c)
	mustInsert(t, connect(t, c.URI()), "kept")
	must(t, c.Isolate(old))
	direct := connect(t, c.DirectURI(old))
	must(t, insert(t.Context(), direct, "lost", &writeconcern.WriteConcern{W: 1}))
	kit.Until(t, "another member is primary", func() bool { return mustPrimary(t, c) != old })
	kit.Until(t, "the new primary has a majority take a document", func() bool {
		err := insert(t.Context(), connect(t, c.DirectURI(mustPrimary(t, c))), "new", writeconcern.Majority())
		return err == nil || mongo.IsDuplicateKeyError(err)
	})
	must(t, c.Rejoin(old))
	coll := connect(t, c.DirectURI(old)).Database("test").Collection("c",
		options.Collection().SetReadConcern(readconcern.Local()))
	kit.Until(t, "the write has rolled back", func() bool {
		lost, err1 := coll.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: "lost"}})
		all, err2 := coll.CountDocuments(t.Context(), bson.D{})
		return err1 == nil && err2 == nil && lost == 0 && all == 2
	})
}
