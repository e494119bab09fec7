package oidc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/test/oidctest"
)

func settings(p *oidctest.Provider) Settings {
	return Settings{Issuer: p.URL, ClientID: p.ClientID, ClientSecret: p.ClientSecret, URL: "https://millrace.example/",
		Scopes: []string{"groups"}, Roles: []Rule{
			{Claim: "groups", Value: "dba", Role: service.Admin},
			{Claim: "groups", Value: "shop", Role: service.Operator, Jobs: []string{"shop-*"}},
			{Claim: "email", Value: "vera@example.org", Role: service.Viewer}}}
}

// login is what a browser is sent back with.
func login(t *testing.T, p *Provider) (keep string, back url.Values) {
	t.Helper()
	address, keep, err := p.Begin(t.Context(), "/jobs/a")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	to, err := r.Location()
	if err != nil || !strings.HasPrefix(to.String(), "https://millrace.example/login/oidc/back?") {
		t.Fatalf("sent back to %v: %v", to, err)
	}
	return keep, to.Query()
}

// TestLogin: who logs in gets the role of the first rule that fits, and no other; nobody
// does with a token that is not theirs.
func TestLogin(t *testing.T) {
	there := oidctest.New(t)
	p := New(settings(there), nil)
	for name, c := range map[string]struct {
		claims map[string]any
		who    *service.Caller
		err    error
	}{
		"by a group": {map[string]any{"sub": "1", "groups": []string{"all", "dba"}, "email": "ada@example.org",
			"email_verified": true}, &service.Caller{Name: "ada@example.org", Role: service.Admin}, nil},
		"by the first that fits": {map[string]any{"sub": "1", "groups": []string{"shop", "dba"}},
			&service.Caller{Name: "1", Role: service.Admin}, nil},
		"by a text": {map[string]any{"sub": "2", "groups": "shop"},
			&service.Caller{Name: "2", Role: service.Operator, Jobs: []string{"shop-*"}}, nil},
		"an address not verified": {map[string]any{"sub": "3", "email": "vera@example.org"},
			&service.Caller{Name: "3", Role: service.Viewer}, nil},
		"a hostile name": {map[string]any{"sub": "a\u202e\x1b[31m" + strings.Repeat("x", 500), "groups": "dba"},
			&service.Caller{Name: "a[31m" + strings.Repeat("x", 95) + "…", Role: service.Admin}, nil},
		"no rule":                {map[string]any{"sub": "4", "groups": []string{"dbas"}, "roles": "dba"}, nil, ErrNobody},
		"a number for a group":   {map[string]any{"sub": "4", "groups": 5}, nil, ErrNobody},
		"another login's token":  {map[string]any{"sub": "5", "groups": "dba", "nonce": "another"}, nil, errAny},
		"another client's token": {map[string]any{"sub": "5", "groups": "dba", "aud": "other"}, nil, errAny},
		"a token that has ended": {map[string]any{"sub": "5", "groups": "dba", "exp": time.Now().Add(-time.Minute).Unix()},
			nil, errAny},
		"another issuer's token": {map[string]any{"sub": "5", "groups": "dba", "iss": "https://other.example"}, nil, errAny},
		"a token of nobody":      {map[string]any{"groups": "dba"}, nil, errAny},
		"refused there":          {nil, nil, errAny},
	} {
		there.Be(c.claims)
		keep, back := login(t, p)
		who, next, err := p.End(t.Context(), keep, back)
		if !reflect.DeepEqual(who, c.who) || (err != nil) != (c.err != nil) || c.err != nil && !errors.Is(c.err, errAny) &&
			!errors.Is(err, c.err) || next != "/jobs/a" {
			t.Errorf("%s: %+v, %q, %v", name, who, next, err)
		}
		if err != nil && strings.Contains(err.Error(), "\u202e") {
			t.Errorf("%s: what the provider says is told as it is: %q", name, err)
		}
		if c.who == nil {
			continue
		}
		if _, _, err := p.End(t.Context(), keep, back); err == nil {
			t.Errorf("%s: a code was good twice", name)
		}
	}
}

var errAny = errors.New("any")

// TestForeignLogin: what was begun in another browser ends in none.
func TestForeignLogin(t *testing.T) {
	there := oidctest.New(t)
	there.Be(map[string]any{"sub": "1", "groups": "dba"})
	p := New(settings(there), nil)
	mine, _ := login(t, p)
	_, foreign := login(t, p)
	for _, keep := range []string{mine, "", "x", "e30"} {
		if who, _, err := p.End(t.Context(), keep, foreign); who != nil || err == nil {
			t.Errorf("with %q: %+v, %v", keep, who, err)
		}
	}
}

// TestWhose: a token for this service names its owner; others name nobody.
func TestWhose(t *testing.T) {
	there := oidctest.New(t)
	p := New(settings(there), nil)
	good := map[string]any{"sub": "1", "groups": "dba"}
	if who := p.Whose(t.Context(), there.Token(good)); who == nil || who.Role != service.Admin || who.Name != "1" {
		t.Errorf("%+v", who)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(there.Token(good), ".")
	for name, token := range map[string]string{
		"of another key":     there.Sign(oidctest.Signer(t, key), good),
		"of another service": there.Token(map[string]any{"sub": "1", "groups": "dba", "aud": "other"}),
		"without signature":  parts[0] + "." + parts[1] + ".",
		"with no algorithm":  "eyJhbGciOiJub25lIn0." + parts[1] + ".",
		"nothing":            "", "of the service": "mr_ABC", "very long": strings.Repeat("a", maxToken) + "..",
	} {
		if who := p.Whose(t.Context(), token); who != nil {
			t.Errorf("%s: %+v", name, who)
		}
	}
}

// TestKeys: tokens, also wrong ones of anybody, do not have the provider's keys read each time.
func TestKeys(t *testing.T) {
	there := oidctest.New(t)
	var reads atomic.Int64
	p := New(settings(there), &http.Client{Transport: round(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/keys") {
			reads.Add(1)
		}
		return http.DefaultTransport.RoundTrip(r)
	})})
	now := time.Now()
	p.seldom.now = func() time.Time { return now }
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{"sub": "1", "groups": "dba"}
	good, wrong := there.Token(claims), there.Sign(oidctest.Signer(t, key), claims)
	for i, after := range []time.Duration{0, 0, keysEvery, keysAge} {
		now = now.Add(after)
		for range 10 {
			if p.Whose(t.Context(), wrong) != nil || p.Whose(t.Context(), good) == nil {
				t.Error("the wrong token is taken, or the good one is not")
			}
		}
		if want := []int64{1, 1, 2, 3}[i]; reads.Load() != want {
			t.Errorf("step %d: the keys were read %d times, want %d", i, reads.Load(), want)
		}
	}
}

// TestAway: a provider that is not there when the service starts is asked again.
func TestAway(t *testing.T) {
	there := oidctest.New(t)
	there.Be(map[string]any{"sub": "1", "groups": "dba"})
	broken := true
	client := &http.Client{Transport: round(func(r *http.Request) (*http.Response, error) {
		if broken {
			return nil, errors.New("no route")
		}
		return http.DefaultTransport.RoundTrip(r)
	})}
	p := New(settings(there), client)
	if _, _, err := p.Begin(t.Context(), "/"); err == nil || !strings.Contains(err.Error(), "no route") {
		t.Errorf("%v", err)
	}
	broken = false
	keep, back := login(t, p)
	if who, _, err := p.End(t.Context(), keep, back); who == nil {
		t.Error(err)
	}
}

type round func(*http.Request) (*http.Response, error)

func (f round) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
