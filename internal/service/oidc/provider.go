// Package oidc logs people in by OpenID Connect, with roles from claims. It has no sessions and pages.
package oidc

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

const (
	// PathBack is where the provider redirects to.
	PathBack   = "/login/oidc/back"
	answerTime = 10 * time.Second
	// keysEvery is the least interval of reading an address of the provider again.
	keysEvery = 10 * time.Second
	keysAge   = 5 * time.Minute
	maxToken  = 16 << 10
)

// Provider logs people in. It may be unreachable at the start. It is safe for concurrent use.
type Provider struct {
	Settings
	client *http.Client
	seldom seldom

	mu    sync.Mutex
	found *oidc.Provider
	// checks is new since began.
	checks *oidc.IDTokenVerifier
	began  time.Time
}

// New makes a provider that client reaches; nil is a default client.
func New(s Settings, client *http.Client) *Provider {
	if client == nil {
		client = &http.Client{}
	}
	own := *client
	own.Timeout = answerTime
	// Keep to the provider's address.
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	p := &Provider{Settings: s, client: &own}
	p.seldom = seldom{to: cmp.Or(own.Transport, http.DefaultTransport), now: time.Now, read: map[string]time.Time{}}
	own.Transport = &p.seldom
	return p
}

// seldom refuses to read an address again within keysEvery. Else each token with a wrong signature, which anybody can
// send, would have the provider's keys read again.
type seldom struct {
	to  http.RoundTripper
	now func() time.Time

	mu   sync.Mutex
	read map[string]time.Time // when an address replied
}

// RoundTrip implements http.RoundTripper.
func (s *seldom) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		return s.to.RoundTrip(r)
	}
	at, now := r.URL.String(), s.now()
	s.mu.Lock()
	was, known := s.read[at]
	s.mu.Unlock()
	if age := now.Sub(was); known && age >= 0 && age < keysEvery {
		return nil, errors.New("it was read a moment ago")
	}
	res, err := s.to.RoundTrip(r)
	if err == nil && res.StatusCode == http.StatusOK {
		s.mu.Lock()
		s.read[at] = now
		s.mu.Unlock()
	}
	return res, err
}

func (p *Provider) Host() string {
	u, err := url.Parse(p.Issuer)
	if err != nil {
		return p.Issuer
	}
	return u.Host
}

// provider reads the provider's document once.
func (p *Provider) provider(ctx context.Context) (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		return p.found, nil
	}
	// The library keeps the context.
	found, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), p.client), p.Issuer)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("read the document of %s: %w", p.Issuer, err),
			"check issuer in the file of --oidc, and that this machine reaches it")
	}
	p.found = found
	return found, nil
}

func (p *Provider) exchange(found *oidc.Provider) *oauth2.Config {
	scopes := append([]string{oidc.ScopeOpenID, "email", "profile"}, p.Scopes...)
	slices.Sort(scopes)
	return &oauth2.Config{ClientID: p.ClientID, ClientSecret: p.ClientSecret, Endpoint: found.Endpoint(),
		RedirectURL: strings.TrimSuffix(p.URL, "/") + PathBack, Scopes: slices.Compact(scopes)}
}

// kept is stored by the browser during a login.
type kept struct {
	State, Nonce, Verifier, Next string
}

// Begin returns the address of a login, and what the browser keeps until End. next is the page after it.
func (p *Provider) Begin(ctx context.Context, next string) (address, keep string, err error) {
	found, err := p.provider(ctx)
	if err != nil {
		return "", "", err
	}
	k := kept{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Next: next}
	raw, err := json.Marshal(k)
	if err != nil {
		return "", "", fmt.Errorf("write what the browser keeps: %w", err)
	}
	return p.exchange(found).AuthCodeURL(k.State, oidc.Nonce(k.Nonce), oauth2.S256ChallengeOption(k.Verifier)),
		base64.RawURLEncoding.EncodeToString(raw), nil
}

// ErrNobody reports a user to whom no rule gives a role.
var ErrNobody = errors.New("no rule gives you a role")

// End returns who has logged in, from what the browser kept and the provider sent, and always the next page.
func (p *Provider) End(ctx context.Context, keep string, back url.Values) (who *service.Caller, next string,
	err error) {
	raw, err := base64.RawURLEncoding.DecodeString(keep)
	var k kept
	if err == nil {
		err = json.Unmarshal(raw, &k)
	}
	if err != nil || k.State == "" || subtle.ConstantTimeCompare([]byte(k.State), []byte(back.Get("state"))) != 1 {
		return nil, "", errors.New("this login began elsewhere, or too long ago")
	}
	if said := back.Get("error"); said != "" {
		return nil, k.Next, fmt.Errorf("%s refused it: %s", p.Host(),
			service.Short(plain(said+" "+back.Get("error_description")), maxName))
	}
	found, err := p.provider(ctx)
	if err != nil {
		return nil, k.Next, err
	}
	ctx = oidc.ClientContext(ctx, p.client)
	token, err := p.exchange(found).Exchange(ctx, back.Get("code"), oauth2.VerifierOption(k.Verifier))
	if err != nil {
		return nil, k.Next, fmt.Errorf("ask %s for the token: %w", p.Host(), bodiless(err))
	}
	text, _ := token.Extra("id_token").(string)
	id, claims, err := p.verify(ctx, found, text)
	if err != nil {
		return nil, k.Next, err
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(k.Nonce)) != 1 {
		return nil, k.Next, errors.New("the token is of another login")
	}
	if who = p.caller(claims); who == nil {
		return nil, k.Next, ErrNobody
	}
	return who, k.Next, nil
}

// Whose returns the caller of a provider's token for this service, nil for none.
func (p *Provider) Whose(ctx context.Context, token string) *service.Caller {
	if len(token) > maxToken || strings.Count(token, ".") != 2 {
		return nil
	}
	found, err := p.provider(ctx)
	if err != nil {
		return nil
	}
	_, claims, err := p.verify(oidc.ClientContext(ctx, p.client), found, token)
	if err != nil {
		return nil
	}
	return p.caller(claims)
}

func (p *Provider) verify(ctx context.Context, found *oidc.Provider, text string) (*oidc.IDToken, map[string]any,
	error) {
	id, err := p.verifier(ctx, found).Verify(ctx, text)
	if err != nil {
		return nil, nil, fmt.Errorf("check the token of %s: %w", p.Host(), err)
	}
	claims := map[string]any{}
	if err := id.Claims(&claims); err != nil {
		return nil, nil, fmt.Errorf("read the token of %s: %w", p.Host(), err)
	}
	if id.Subject == "" {
		return nil, nil, fmt.Errorf("the token of %s is of nobody", p.Host())
	}
	return id, claims, nil
}

// verifier returns one that keeps the provider's keys for keysAge, so that keys that the provider withdraws end.
func (p *Provider) verifier(ctx context.Context, found *oidc.Provider) *oidc.IDTokenVerifier {
	p.mu.Lock()
	defer p.mu.Unlock()
	if age := p.seldom.now().Sub(p.began); p.checks == nil || age < 0 || age >= keysAge {
		p.began = p.seldom.now()
		p.checks = found.VerifierContext(oidc.ClientContext(context.WithoutCancel(ctx), p.client),
			&oidc.Config{ClientID: p.ClientID})
	}
	return p.checks
}

// bodiless omits the provider's body, which may hold anything.
func bodiless(err error) error {
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return fmt.Errorf("it answered %s %s", e.Response.Status, service.Short(plain(e.ErrorCode), maxName))
	}
	return err
}

func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}
