package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestLogged: the addresses are those that serve says first, and of a long log the end
// is kept.
func TestLogged(t *testing.T) {
	var l logged
	log := "{\"msg\":\"workers reach NATS\",\"nats\":\"127.0.0.1:1\"}\nno JSON\n{\"console\":\"http://127.0.0.1:2/\"}\n{\"console\":\"http://later/\"}\n"
	for i := range 2 * tailLines {
		log += fmt.Sprintln("line", i)
	}
	l.read(strings.NewReader(log))
	if console, nats := l.reached(); console != "http://127.0.0.1:2/" || nats != "127.0.0.1:1" {
		t.Errorf("%q, %q", console, nats)
	}
	if want := fmt.Sprint("line ", 2*tailLines-1); !strings.HasSuffix(l.last(), want) || strings.Count(l.last(), "\n") != tailLines-1 {
		t.Errorf("kept %q", l.last())
	}
}
