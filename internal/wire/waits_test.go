package wire

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/tag"
)

// TestSelectorNames: errors and waits name the member that was selected.
func TestSelectorNames(t *testing.T) {
	east, west := tag.Set{{Name: "rack", Value: "1"}, {Name: "dc", Value: "east"}}, tag.Set{{Name: "dc", Value: "west"}}
	for want, sel := range map[string]Selector{
		"a primary":                              Primary(),
		"member h:1":                             ByAddress("h:1"),
		"a member for read preference secondary": ByReadPreference(readpref.Secondary()),
		"a member for read preference primaryPreferred": ByReadPreference(readpref.PrimaryPreferred()),
		"a member for read preference nearest with tags dc:east,rack:1;dc:west and a staleness of 2m0s at " +
			"most": ByReadPreference(readpref.Nearest(readpref.WithTagSets(east, west),
			readpref.WithMaxStaleness(2*time.Minute))),
	} {
		if got := sel.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := ByReadPreference(nil).String(); got != "a primary" {
		t.Errorf("%q for no read preference", got)
	}
}

// TestCheckoutIsBounded: without a suitable server Checkout waits for the selection's
// timeout, and is named meanwhile.
func TestCheckoutIsBounded(t *testing.T) {
	// Nobody answers there.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := Open(options.Client().SetHosts([]string{l.Addr().String()}).SetReplicaSet("x").
		SetServerSelectionTimeout(2 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	if what, since := p.Waits(); what != "" || !since.IsZero() {
		t.Errorf("a new pool waits %s since %s", what, since)
	}
	began, ended := time.Now(), make(chan error, 1)
	go func() {
		_, err := p.Checkout(t.Context(), ByReadPreference(readpref.Secondary()))
		ended <- err
	}()
	named := false
	for err = nil; err == nil; {
		select {
		case err = <-ended:
		case <-time.After(10 * time.Millisecond):
			what, since := p.Waits()
			named = named || what == "to have a member for read preference secondary" &&
				!since.Before(began.Truncate(time.Second))
		}
		if time.Since(began) > time.Minute {
			t.Fatal("it waits for ever")
		}
	}
	if !named {
		t.Error("the wait was not named")
	}
	var command mongo.CommandError
	if _, none := UnsuitableServers(err); !none || !strings.Contains(err.Error(),
		"select a member for read preference secondary") ||
		!errors.As(err, &command) || !command.HasErrorLabel("NetworkError") {
		t.Errorf("%v", err)
	}
	if what, since := p.Waits(); what != "" || !since.IsZero() {
		t.Errorf("%s since %s, although nothing is under way", what, since)
	}
}
