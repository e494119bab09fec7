package config

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/mongo"
)

// Resolver gives the value that a reference stands for: env:NAME, file:NAME, or
// sealed:JOB:TEXT, which is a sealed value that a job wants.
type Resolver func(reference string) (string, error)

// Placeholder resolves each reference to an invalid address, for checks without secrets.
func Placeholder(string) (string, error) { return "mongodb://reference.invalid/", nil }

// IsReference reports whether a value stands for another one.
func IsReference(value string) bool {
	return strings.HasPrefix(value, "env:") || strings.HasPrefix(value, "file:") || strings.HasPrefix(value, sealedPrefix)
}

// ofProcess returns settings of sync that belong to a process, or that would repeat an action
// each time a worker takes the job.
func ofProcess() []string {
	return []string{flagConfig, "job", "restart", "dry-run", "verify", flagTargetShard, "listen", flagToken,
		flagListenCert, flagListenKey, "listen-insecure", "open-status", "pprof", "report", "output", "log-level",
		"log-format", flagProgress}
}

// Definition reads the settings of a job from YAML or JSON as `millrace sync --config`
// has them. Connection strings with a password are refused: a reference stands for
// them, which resolve reads where the job runs. Nothing of the environment counts.
func Definition(name, text string, resolve Resolver) (*Sync, Problems) {
	var s Sync
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	s.Bind(fs, CommandSync)
	l := loader{fs: fs, origins: Origins{}, job: name}
	entries, problems := parseFile("settings", []byte(text), CommandSync)
	l.problems = problems
	for _, e := range entries {
		o := Origin{Kind: FromFile, Name: "settings", Line: e.line, Lines: e.lines}
		if slices.Contains(ofProcess(), e.key) {
			l.problems = append(l.problems,
				Problem{Setting: e.key, Where: o.String(), What: "does not belong in the definition of a job", How: "leave it out"})
			continue
		}
		for i := range e.values {
			e.values[i] = l.secret(e.key, e.values[i], o.item(i), resolve)
		}
		l.set(e.key, o, e.values...)
	}
	s.Job = name
	s.Rules.Secret = func(ref string) (string, error) { // as for connection strings
		text, err := resolve(ref)
		return strings.TrimRight(text, "\r\n"), err
	}
	return &s, append(l.problems, s.Validate(l.origins, nil)...)
}

// secret resolves the value of a setting, or the part after a shard's name, if it is a reference.
func (l *loader) secret(key, value string, o Origin, resolve Resolver) string {
	prefix := ""
	if key == flagSourceShard {
		if name, uri, ok := strings.Cut(value, "="); ok {
			prefix, value = name+"=", uri
		}
	} else if key != flagSource && key != flagTarget {
		return value
	}
	problem := Problem{Setting: key, Where: o.String()}
	switch {
	case mongo.HasPassword(value):
		problem.What, problem.How = "holds a password, which everybody could read who may look at the job",
			"write env:NAME or file:NAME, and give the connection string to the workers under that name, or seal it (millrace "+
				"secrets seal)"
		value, _ = Placeholder("")
	case IsReference(value):
		reference, err := value, error(nil)
		if strings.HasPrefix(value, sealedPrefix) {
			reference, err = sealedPrefix+l.job+":"+strings.TrimPrefix(value, sealedPrefix), checkSealed(value)
			value = "the sealed value"
		}
		text := ""
		if err == nil {
			text, err = resolve(reference)
		}
		if err == nil {
			return prefix + strings.TrimSpace(text)
		}
		problem.What, problem.How = fmt.Sprintf("%s cannot be had here: %s", value, err), "give it to this process"
		value, _ = Placeholder("")
	default:
		return prefix + value
	}
	l.problems = append(l.problems, problem)
	return prefix + value
}

// sealedPrefix begins a value that only processes with the key can read.
const sealedPrefix = "sealed:"

// sealed is what is in a sealed value.
type sealed struct {
	// Jobs are patterns of job names; none is all. They keep others from using the value in
	// a job of their own.
	Jobs  []string `json:"jobs,omitempty"`
	Value string   `json:"value"`
}

// NewKey makes a key for sealed values: what its owner keeps, and what seals for it.
func NewKey() (key, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", fmt.Errorf("make a key: %w", err)
	}
	return id.String(), id.Recipient().String(), nil
}

// Seal encrypts a value for the settings of a job. Only processes with the recipient's key can
// read it, and only for jobs whose names match one of the patterns, or all if there is none.
func Seal(recipient string, jobs []string, value string) (string, error) {
	to, err := age.ParseX25519Recipient(strings.TrimSpace(recipient))
	if err != nil {
		return "", fmt.Errorf("read the recipient: %w", err)
	}
	for _, p := range jobs {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return "", fmt.Errorf("%q is no pattern of names: use * and ?, as in shop-*", p)
		}
	}
	if value == "" {
		return "", errors.New("the value is empty")
	}
	raw, err := json.Marshal(sealed{jobs, value})
	if err != nil {
		return "", fmt.Errorf("write the value: %w", err)
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, to)
	if err == nil {
		if _, err = w.Write(raw); err == nil {
			err = w.Close()
		}
	}
	if err != nil {
		return "", fmt.Errorf("seal the value: %w", err)
	}
	return sealedPrefix + base64.RawURLEncoding.EncodeToString(b.Bytes()), nil
}

// ageHeader begins what age has encrypted (age-encryption.org/v1).
const ageHeader = "age-encryption.org/v1\n"

// checkSealed says what is wrong with a sealed value, as far as it shows without the key.
func checkSealed(value string) error {
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(value, sealedPrefix))
	if err != nil || !bytes.HasPrefix(raw, []byte(ageHeader)) {
		return errors.New("it is not what `millrace secrets seal` prints")
	}
	return nil
}

// unseal reads a sealed value for a job, with the keys in a file.
func unseal(keyFile, job, text string) (string, error) {
	f, err := os.Open(keyFile) //nolint:gosec // the operator names it
	if err != nil {
		return "", fmt.Errorf("read --secrets-key: %w", err)
	}
	defer func() { _ = f.Close() }()
	keys, err := age.ParseIdentities(f)
	if err != nil {
		// The error may show a line of it.
		return "", errors.New("--secrets-key holds no key, as `millrace secrets keygen` writes it")
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", checkSealed(sealedPrefix + text)
	}
	r, err := age.Decrypt(bytes.NewReader(raw), keys...)
	if err != nil {
		return "", fmt.Errorf("this process has another key: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxFile))
	var s sealed
	if err == nil {
		err = json.Unmarshal(plain, &s)
	}
	if err != nil {
		return "", errors.New("what is in it cannot be read")
	}
	for _, p := range s.Jobs {
		if ok, err := path.Match(p, job); ok && err == nil {
			return s.Value, nil
		}
	}
	if len(s.Jobs) > 0 {
		return "", fmt.Errorf("it was sealed for jobs of other names than %s", job)
	}
	return s.Value, nil
}
