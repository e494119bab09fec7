package server

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestConnectionsAreBounded: more connections than a server takes wait for an end of others, and Close ends Accept.
func TestConnectionsAreBounded(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = 400
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), "127.0.0.1:0", "", "", slog.New(slog.DiscardHandler))
	if back := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); errors.Join(err, back) != nil {
		t.Fatal(err, back)
	}
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	var list []net.Conn
	for range 101 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for range 100 {
		c := <-accepted
		defer c.Close()
		list = append(list, c)
	}
	select {
	case c := <-accepted:
		_ = c.Close()
		t.Fatal("one more than a quarter of the files is accepted")
	case <-time.After(50 * time.Millisecond):
	}
	_ = list[0].Close()
	_ = list[0].Close() // counts once
	c := <-accepted
	defer c.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if c, open := <-accepted; open {
		t.Errorf("accepted after the end: %v", c.RemoteAddr())
	}
}
