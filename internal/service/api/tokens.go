package api

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

const (
	// maxTokens bounds what a file of tokens may hold, maxTokenFile its bytes.
	maxTokens    = 1000
	maxTokenFile = 1 << 20
	// lookEvery is how often at most a file of tokens is looked at again.
	lookEvery = time.Second
	// maxToken bounds what is given as a token, in bytes.
	maxToken = 1 << 10
)

// The errors of Enter.
var (
	ErrWrongToken = errors.New("the token is missing or wrong")
	ErrTooMany    = errors.New("there were too many wrong tokens from this address")
)

// Tokens know who may enter: those of a file, which is read again when it changes, or
// one of an administrator. It is safe for concurrent use.
type Tokens struct {
	file    string
	log     *slog.Logger
	now     func() time.Time
	guesses *guesses

	mu     sync.Mutex
	list   []holder
	seen   stamp // of the file as it was read last
	looked time.Time
}

// holder is somebody with a token, which is known by its sum alone.
type holder struct {
	name string
	role service.Role
	jobs []string
	sum  [sha256.Size]byte
}

// stamp tells one content of a file from the next.
type stamp struct {
	at   time.Time
	size int64
	id   os.FileInfo
}

func (s stamp) same(o stamp) bool {
	return s.id != nil && o.id != nil && s.at.Equal(o.at) && s.size == o.size && os.SameFile(s.id, o.id)
}

// NewToken makes a token, and its sum for a file of tokens.
func NewToken() (token, sum string) {
	token = "mr_" + rand.Text()
	return token, Sum(token)
}

// Sum is what a file of tokens has of a token: the SHA-256 in hex.
func Sum(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// OneToken are the tokens of a service that has no file of them: one, of an administrator.
func OneToken(name, token string) *Tokens {
	return &Tokens{now: time.Now, guesses: newGuesses(), list: []holder{{name: name, role: service.Admin, sum: sha256.Sum256([]byte(token))}}}
}

// OpenTokens reads a file of tokens. What is wrong with it is a config.Problems.
func OpenTokens(file string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{file: file, log: log, now: time.Now, guesses: newGuesses()}
	list, seen, err := readTokens(file)
	if err != nil {
		return nil, err
	}
	t.list, t.seen, t.looked = list, seen, t.now()
	return t, nil
}

// Enter is who has a token, ErrWrongToken for nobody. Wrong ones are counted by the
// address that they come from; after many of them no token is looked at for a while,
// which is ErrTooMany.
func (t *Tokens) Enter(token, from string) (*service.Caller, error) {
	now := t.now()
	if t.guesses.blocked(from, now) {
		return nil, ErrTooMany
	}
	c := t.Whose(token)
	if c == nil {
		if token != "" { // who does not know that one is needed guesses nothing
			t.guesses.wrong(from, now)
		}
		return nil, ErrWrongToken
	}
	c.From = from
	return c, nil
}

// Whose is who has a token now, nil for nobody.
func (t *Tokens) Whose(token string) *service.Caller {
	if token == "" || len(token) > maxToken {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	found := -1
	list := t.holders()
	for i := range list { // all of them, so that the time says nothing
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], list[i].sum[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	h := list[found]
	return &service.Caller{Name: h.name, Role: h.role, Jobs: slices.Clone(h.jobs)}
}

// holders are those of the file as it is now. While it cannot be used, the last that
// could be is.
func (t *Tokens) holders() []holder {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if t.file == "" || now.Sub(t.looked) < lookEvery && !now.Before(t.looked) {
		return t.list
	}
	t.looked = now
	info, err := os.Stat(t.file)
	if err == nil && stampOf(info).same(t.seen) {
		return t.list
	}
	list, seen, err := readTokens(t.file)
	if err != nil {
		t.log.Error("the file of tokens has changed and cannot be used: the tokens before it go on", "file", t.file, "error", err)
		return t.list
	}
	t.log.Info("the file of tokens was read again", "file", t.file, "tokens", len(list))
	t.list, t.seen = list, seen
	return t.list
}

func stampOf(info os.FileInfo) stamp { return stamp{at: info.ModTime(), size: info.Size(), id: info} }

// readTokens reads a file that nobody else may read.
func readTokens(file string) ([]holder, stamp, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, stamp{}, mongo.WithHint(fmt.Errorf("read the tokens: %w", err), "name a file with tokens: [{name, role, sha256}]")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, stamp{}, fmt.Errorf("read the tokens: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, stamp{}, config.Problems{{Where: "file " + file, What: "can be read or written by other users, and says who may enter", How: "chmod 600 " + file}}
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return nil, stamp{}, fmt.Errorf("read the tokens: %w", err)
	}
	r := tokenReader{file: file}
	list := r.read(raw)
	if len(r.problems) > 0 {
		return nil, stamp{}, r.problems
	}
	return list, stampOf(info), nil
}

// tokenReader reads tokens, and gathers what is wrong with them.
type tokenReader struct {
	file     string
	problems config.Problems
}

func (r *tokenReader) fail(line int, setting, what, how string) {
	where := "file " + r.file
	if line > 0 {
		where = fmt.Sprintf("%s line %d", where, line)
	}
	r.problems = append(r.problems, config.Problem{Setting: setting, Where: where, What: what, How: how})
}

// tokenEntry is a token as the file has it.
type tokenEntry struct {
	Name string   `yaml:"name"`
	Role string   `yaml:"role"`
	Jobs []string `yaml:"jobs"`
	Sum  string   `yaml:"sha256"`
}

const tokensForm = "write tokens: with a list below it, each of name, role, sha256 and, if it is for some jobs, jobs"

func (r *tokenReader) read(raw []byte) (list []holder) {
	// The parser indexes its tokens unchecked: what it cannot cope with must end nothing.
	defer func() {
		if recover() != nil {
			r.fail(0, "", "is not YAML", tokensForm)
		}
	}()
	if len(raw) > maxTokenFile {
		r.fail(0, "", fmt.Sprintf("is larger than %d bytes", maxTokenFile), "check the path")
		return nil
	}
	nodes, ok := r.nodes(raw)
	if !ok {
		return nil
	}
	if len(nodes) == 0 || len(nodes) > maxTokens {
		r.fail(0, "tokens", fmt.Sprintf("has %d entries", len(nodes)), fmt.Sprintf("have at least one, and at most %d", maxTokens))
		return nil
	}
	for _, n := range nodes {
		var e tokenEntry
		line := n.GetToken().Position.Line
		if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
			line = m.Values[0].Key.GetToken().Position.Line
		}
		if err := yaml.NodeToValue(n, &e, yaml.DisallowUnknownField()); err != nil {
			r.fail(line, "tokens", "has an entry that is no token: "+brief(err), tokensForm)
			continue
		}
		if h, ok := r.holder(e, line, list); ok {
			list = append(list, h)
		}
	}
	return list
}

// nodes are the entries of the file.
func (r *tokenReader) nodes(raw []byte) ([]ast.Node, bool) {
	parsed, err := parser.ParseBytes(raw, 0)
	if err != nil {
		line := 0
		if e, ok := errors.AsType[yaml.Error](err); ok && e.GetToken() != nil && e.GetToken().Position != nil {
			line = e.GetToken().Position.Line
		}
		r.fail(line, "", "is not YAML: "+brief(err), tokensForm)
		return nil, false
	}
	var root []*ast.MappingValueNode
	if len(parsed.Docs) == 1 {
		switch n := parsed.Docs[0].Body.(type) {
		case *ast.MappingNode:
			root = n.Values
		case *ast.MappingValueNode:
			root = []*ast.MappingValueNode{n}
		}
	}
	if len(root) != 1 || root[0].Key.String() != "tokens" {
		r.fail(0, "", "is no file of tokens", tokensForm)
		return nil, false
	}
	list, ok := root[0].Value.(*ast.SequenceNode)
	if !ok {
		r.fail(root[0].Key.GetToken().Position.Line, "tokens", "is no list", tokensForm)
		return nil, false
	}
	return list.Values, true
}

// brief is what a parser says, without the part of the file that it shows.
func brief(err error) string {
	if e, ok := errors.AsType[yaml.Error](err); ok {
		return e.GetMessage()
	}
	return err.Error()
}

func (r *tokenReader) holder(e tokenEntry, line int, before []holder) (holder, bool) {
	h := holder{name: e.Name, role: service.Role(e.Role), jobs: e.Jobs}
	n := len(r.problems)
	if e.Name == "" || len(e.Name) > 100 || strings.ContainsFunc(e.Name, notPlain) {
		r.fail(line, "name", "is missing, longer than 100 bytes or has characters that cannot be shown", "name whoever has the token: the audit trail says so")
	}
	if slices.ContainsFunc(before, func(o holder) bool { return o.name == e.Name }) {
		r.fail(line, "name", fmt.Sprintf("%q is there twice", e.Name), "give each token a name of its own")
	}
	if !slices.Contains(service.Roles(), h.role) {
		r.fail(line, "role", fmt.Sprintf("%q is no role", e.Role), "use viewer, operator or admin")
	}
	for _, p := range e.Jobs {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			r.fail(line, "jobs", fmt.Sprintf("%q is no pattern of names", p), "use * and ?, as in shop-*")
		}
	}
	if e.Jobs != nil && len(e.Jobs) == 0 {
		r.fail(line, "jobs", "is an empty list", "leave it out for all jobs")
	}
	sum, err := hex.DecodeString(e.Sum)
	if err != nil || len(sum) != len(h.sum) {
		r.fail(line, "sha256", "is no SHA-256 in hex, of 64 digits", "write what printf %s \"$TOKEN\" | sha256sum prints")
	} else if copy(h.sum[:], sum); slices.ContainsFunc(before, func(o holder) bool { return o.sum == h.sum }) {
		r.fail(line, "sha256", "is that of another entry", "give everybody a token of their own")
	}
	return h, len(r.problems) == n
}
