package loopback

import (
	"net"
	"testing"
)

func TestHost(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST:7117": true, "127.0.0.1": true, "127.1.2.3:1": true, "[::1]:80": true, "::1": true,
		"[::ffff:127.0.0.1]:1": true,
		"":                     false, ":80": false, "0.0.0.0:80": false,
		"evil.example": false, "localhost.evil.example:80": false,
		"127.0.0.1.evil.example": false, "10.0.0.1:1": false,
	} {
		if got := Host(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}

func TestAddr(t *testing.T) {
	for ip, want := range map[string]bool{"127.0.0.1": true, "::1": true, "0.0.0.0": false, "::": false,
		"10.0.0.1": false} {
		if got := Addr(&net.TCPAddr{IP: net.ParseIP(ip)}); got != want {
			t.Errorf("%s: %v", ip, got)
		}
	}
	if Addr(&net.UnixAddr{Name: "x"}) {
		t.Error("no TCP")
	}
}
