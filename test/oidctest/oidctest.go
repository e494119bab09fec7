// Package oidctest is a provider of OpenID Connect for tests.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Provider logs in whoever asks, as whom the test says. It gives a token for a code
// once, to who knows the secret and the verifier of the challenge, as RFC 6749 and RFC
// 7636 want it.
type Provider struct {
	*httptest.Server
	// ClientID and ClientSecret are those of the only client.
	ClientID, ClientSecret string

	t      testing.TB
	signer jose.Signer
	public jose.JSONWebKey

	mu     sync.Mutex
	claims map[string]any
	codes  map[string]url.Values
}

// New starts one, until the test ends.
func New(t testing.TB) *Provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{t: t, ClientID: "millrace", ClientSecret: "a secret between the two", codes: map[string]url.Values{},
		public: jose.JSONWebKey{Key: &key.PublicKey, KeyID: "k1", Algorithm: "ES256", Use: "sig"}}
	p.signer = Signer(t, key)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.reply(w, map[string]any{"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL +
			"/token", "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"}, "response_types_supported": []string{"code"},
			"subject_types_supported": []string{"public"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		p.reply(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{p.public}})
	})
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// Signer signs with a key, of which the provider's own is one.
func Signer(t testing.TB, key *ecdsa.PrivateKey) jose.Signer {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key},
		(&jose.SignerOptions{}).WithHeader("kid", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Be says who logs in next; nil refuses.
func (p *Provider) Be(claims map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims = claims
}

// Token is one with these claims over the usual ones.
func (p *Provider) Token(claims map[string]any) string { return p.Sign(p.signer, claims) }

// Sign is Token by another signer.
func (p *Provider) Sign(signer jose.Signer, claims map[string]any) string {
	p.t.Helper()
	all := map[string]any{"iss": p.URL, "aud": p.ClientID, "iat": time.Now().Unix(),
		"exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	text, err := jwt.Signed(signer).Claims(all).Serialize()
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := r.URL.Query()
	back := url.Values{"state": {q.Get("state")}}
	if p.claims == nil {
		back.Set("error", "access_denied")
		back.Set("error_description", "not <b>you</b>\u202e")
	} else {
		code := rand.Text()
		p.codes[code] = q
		back.Set("code", code)
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q, known := p.codes[r.FormValue("code")]
	delete(p.codes, r.FormValue("code"))
	id, secret, _ := r.BasicAuth()
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if !known || id != p.ClientID || secret != url.QueryEscape(p.ClientSecret) && secret != p.ClientSecret ||
		q.Get("client_id") != id || q.Get("redirect_uri") != r.FormValue("redirect_uri") ||
		!strings.Contains(q.Get("scope"), "openid") || q.Get("code_challenge_method") != "S256" ||
		q.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(sum[:]) {
		w.WriteHeader(http.StatusBadRequest)
		p.reply(w, map[string]string{"error": "invalid_grant"})
		return
	}
	claims := maps.Clone(p.claims)
	if _, ok := claims["nonce"]; !ok {
		claims["nonce"] = q.Get("nonce")
	}
	p.reply(w, map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 60,
		"id_token": p.Token(claims)})
}

func (p *Provider) reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		p.t.Error(err)
	}
}
