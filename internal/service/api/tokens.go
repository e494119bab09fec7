package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/yamlfile"
)

const (
	maxTokens = 1000
	// lookEvery is the least interval of reading the file again.
	lookEvery = time.Second
	maxToken  = 1 << 10
)

var (
	ErrWrongToken = errors.New("the token is missing or wrong")
	ErrTooMany    = errors.New("there were too many wrong tokens from this address")
)

// Tokens are those of a file, read again when it changes, or one of an administrator. It is safe for concurrent use.
type Tokens struct {
	file    string
	log     *slog.Logger
	now     func() time.Time
	guesses *guesses

	mu     sync.Mutex
	list   []holder
	seen   os.FileInfo // at the last read
	looked time.Time
}

// holder has only the hash of a token.
type holder struct {
	service.Caller
	sum [sha256.Size]byte
}

// OneToken returns a single token of an administrator.
func OneToken(name, token string) *Tokens {
	return &Tokens{now: time.Now, guesses: newGuesses(),
		list: []holder{{service.Caller{Name: name, Role: service.Admin}, sha256.Sum256([]byte(token))}}}
}

// OpenTokens reads a file of tokens. Its errors are config.Problems.
func OpenTokens(file string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{file: file, log: log, now: time.Now, guesses: newGuesses()}
	list, seen, err := readTokens(file)
	if err != nil {
		return nil, err
	}
	t.list, t.seen, t.looked = list, seen, t.now()
	return t, nil
}

// Enter returns the caller of a token, or ErrWrongToken; after many wrong ones from an address ErrTooMany. A valid
// token always enters, so that others behind the same proxy cannot lock its owner out.
func (t *Tokens) Enter(token, from string) (*service.Caller, error) {
	c := t.Whose(token)
	if c == nil {
		if token != "" && t.guesses.wrong(from, t.now()) { // a missing token is no guess
			return nil, ErrTooMany
		}
		return nil, ErrWrongToken
	}
	c.From = from
	return c, nil
}

// Whose returns the caller of a token, nil for none.
func (t *Tokens) Whose(token string) *service.Caller {
	if token == "" || len(token) > maxToken {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	found := -1
	list := t.holders()
	for i := range list { // in constant time
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], list[i].sum[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	c := list[found].Caller
	c.Jobs = slices.Clone(c.Jobs)
	return &c
}

// holders returns those of the file, or the last valid ones.
func (t *Tokens) holders() []holder {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if t.file == "" || now.Sub(t.looked) < lookEvery && !now.Before(t.looked) {
		return t.list
	}
	t.looked = now
	info, err := os.Stat(t.file)
	if err == nil && same(info, t.seen) {
		return t.list
	}
	list, seen, err := readTokens(t.file)
	if err != nil {
		t.log.Error("the file of tokens has changed and cannot be used: the tokens before it go on", "file", t.file, "error",
			err)
		return t.list
	}
	t.log.Info("the file of tokens was read again", "file", t.file, "tokens", len(list))
	t.list, t.seen = list, seen
	return t.list
}

func same(a, b os.FileInfo) bool {
	return a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && os.SameFile(a, b)
}

// readTokens refuses a file that others can read.
func readTokens(file string) ([]holder, os.FileInfo, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, mongo.WithHint(fmt.Errorf("read the tokens: %w", err),
			"name a file with tokens: [{name, role, sha256}]")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("read the tokens: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, nil, config.Problems{{Where: "file " + file, What: "can be read or written by other users, and " +
			"says who may enter", How: "chmod 600 " + file}}
	}
	raw, err := io.ReadAll(io.LimitReader(f, yamlfile.MaxFile+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read the tokens: %w", err)
	}
	var list []holder
	r := &yamlfile.Reader{File: file}
	err = r.Whole(raw, tokensForm, func(s yamlfile.Section) { list = readHolders(s) }, "tokens")
	return list, info, err
}

const tokensForm = "write tokens: with a list below it, each of name, role, sha256 and, if it is for some jobs, jobs"

func readHolders(all yamlfile.Section) (list []holder) {
	items := all.Items("tokens", tokensForm)
	if len(items) == 0 || len(items) > maxTokens {
		all.Bad("tokens", fmt.Sprintf("has %d entries", len(items)),
			fmt.Sprintf("have at least one, and at most %d", maxTokens))
		return nil
	}
	for i, n := range items {
		one, ok := all.Section(n, fmt.Sprintf("tokens[%d]", i), tokensForm, "name", "role", "sha256", "jobs")
		if !ok {
			continue
		}
		if h, ok := readHolder(one, list); ok {
			list = append(list, h)
		}
	}
	return list
}

func readHolder(s yamlfile.Section, before []holder) (holder, bool) {
	h := holder{Caller: service.Caller{Name: s.Text("name"), Role: service.Role(s.Text("role"))}}
	n := len(s.Problems)
	if h.Name == "" || len(h.Name) > 100 || strings.ContainsFunc(h.Name, notPlain) {
		s.Bad("name", "is missing, longer than 100 bytes or has characters that cannot be shown",
			"name whoever has the token: the audit trail says so")
	}
	if slices.ContainsFunc(before, func(o holder) bool { return o.Name == h.Name }) {
		s.Bad("name", fmt.Sprintf("%q is used twice", h.Name), "give each token a name of its own")
	}
	if !slices.Contains(service.Roles(), h.Role) {
		s.Bad("role", fmt.Sprintf("%.40q is not a role", h.Role), "use viewer, operator or admin")
	}
	h.Jobs = s.Patterns()
	sum, err := hex.DecodeString(s.Text("sha256"))
	if err != nil || len(sum) != len(h.sum) {
		s.Bad("sha256", "is not a SHA-256 in hex, of 64 digits", "write what printf %s \"$TOKEN\" | sha256sum prints")
	} else if copy(h.sum[:], sum); slices.ContainsFunc(before, func(o holder) bool { return o.sum == h.sum }) {
		s.Bad("sha256", "is that of another entry", "give everybody a token of their own")
	}
	return h, len(s.Problems) == n
}

const (
	// An address may send guessBurst wrong tokens, then one each guessEvery.
	guessBurst  = 20
	guessEvery  = 3 * time.Second
	maxGuessers = 4096
)

// guesses count wrong tokens by network; nil counts none.
type guesses struct {
	mu sync.Mutex
	by map[netip.Prefix]*rate.Limiter
}

func newGuesses() *guesses { return &guesses{by: map[netip.Prefix]*rate.Limiter{}} }

func network(from string) netip.Prefix {
	ip, err := netip.ParseAddr(from)
	if err != nil {
		return netip.Prefix{} // unknown addresses share one
	}
	ip = ip.Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // bits is valid
	return p
}

// wrong counts a wrong token. wait means that its network must wait.
func (g *guesses) wrong(from string, now time.Time) (wait bool) {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := network(from)
	l := g.by[key]
	if l == nil {
		g.room(now)
		l = rate.NewLimiter(rate.Every(guessEvery), guessBurst)
		g.by[key] = l
	}
	return !l.AllowN(now, 1)
}

// room bounds memory: it forgets networks that need not wait, or else others.
func (g *guesses) room(now time.Time) {
	if len(g.by) < maxGuessers {
		return
	}
	for key, l := range g.by {
		if l.TokensAt(now) >= guessBurst {
			delete(g.by, key)
		}
	}
	for key := range g.by {
		if len(g.by) <= maxGuessers/4*3 {
			return
		}
		delete(g.by, key)
	}
}

// forwarded sets a request's address to the client's if a trusted proxy sent it: the last address of X-Forwarded-For
// that is not a trusted proxy's. Clients may write what comes before.
func forwarded(trusted []netip.Prefix, next http.Handler) http.Handler {
	if len(trusted) == 0 {
		return next
	}
	ours := func(ip netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		for ip := peer.Addr().Unmap(); err == nil && ours(ip) && len(list) > 0; list = list[:len(list)-1] {
			if ip, err = netip.ParseAddr(strings.TrimSpace(list[len(list)-1])); err == nil {
				ip = ip.Unmap()
				r.RemoteAddr = net.JoinHostPort(ip.String(), "0")
			}
		}
		next.ServeHTTP(w, r)
	})
}
