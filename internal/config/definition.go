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
	"regexp"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/mongo"
)

// Resolver returns the value that a reference of a job stands for: env:NAME, file:NAME, or a sealed value. The job
// is "" for the process's own settings.
type Resolver func(job, reference string) (string, error)

const placeholder = "mongodb://reference.invalid/"

// IsReference reports whether a value stands for another one.
func IsReference(value string) bool {
	return strings.HasPrefix(value, "env:") || strings.HasPrefix(value, "file:") || strings.HasPrefix(value, sealedPrefix)
}

// ofProcess returns settings of sync that belong to a process, or that would repeat an action
// each time a worker takes the job.
func ofProcess() []string {
	return []string{flagConfig, "job", "restart", "dry-run", "verify", flagTargetShard, "listen", flagToken,
		flagListenCert, flagListenKey, flagCopy, flagSourceAgent, flagTargetAgents, flagTokenFile, flagCA,
		"listen-insecure", "open-status", "pprof", "report", "output", "log-level", "log-format", flagProgress,
		flagSpoolDir}
}

// CheckDefinition checks the settings of a job as Definition reads them, without what they refer to: it resolves
// no reference and opens no file.
func CheckDefinition(name, text string) (*Sync, Problems) {
	return Definition(name, text, &Access{
		Secret: func(string, string) (string, error) { return placeholder, nil },
		File:   func(string) (string, error) { return "", nil },
	})
}

// Access gives the settings of jobs what they refer to.
type Access struct {
	Secret Resolver
	// File returns the path of a file that a connection string names. Secrets that the operator gave name files
	// as they like.
	File func(name string) (string, error)
}

// Definition reads the settings of a job from YAML or JSON as `millrace sync --config`
// has them. Connection strings with a password are refused: a reference stands for
// them, which access resolves where the job runs. Nothing of the environment counts.
func Definition(name, text string, access *Access) (*Sync, Problems) {
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
			e.values[i] = l.secret(e.key, e.values[i], o.item(i), access)
		}
		l.set(e.key, o, e.values...)
	}
	s.Job = name
	s.Rules.Secret = func(ref string) (string, error) { // as for connection strings
		text, err := access.Secret(name, ref)
		return strings.TrimRight(text, "\r\n"), err
	}
	for _, p := range s.Validate(l.origins, nil) {
		if p.What == "is missing" && (p.Setting == flagSource || p.Setting == flagTarget) { // there are no flags
			p.How = "write " + p.Setting + ": env:NAME, and give the connection string to the workers under that name"
		}
		l.problems = append(l.problems, p)
	}
	return &s, l.problems
}

// secret resolves the value of a setting, or the part after a shard's name, if it is a reference.
func (l *loader) secret(key, value string, o Origin, access *Access) string {
	prefix := ""
	if key == flagSourceShard {
		if name, uri, ok := strings.Cut(value, "="); ok {
			prefix, value = name+"=", uri
		}
	} else if key != flagSource && key != flagTarget {
		return value
	}
	problem := Problem{Setting: key, Where: o.String()}
	sealed, reference := strings.HasPrefix(value, sealedPrefix), IsReference(value)
	var err error
	switch {
	case mongo.HasPassword(value):
		problem.What, problem.How = "holds a password, which everybody could read who may look at the job",
			"write env:NAME or file:NAME, and give the connection string to the workers under that name, or seal it (millrace "+
				"secrets seal)"
	case reference:
		text, shown := "", value
		if sealed {
			shown, err = "the sealed value", checkSealed(value)
		}
		if err == nil {
			text, err = access.Secret(l.job, value)
		}
		if err != nil {
			problem.What, problem.How = fmt.Sprintf("cannot read %s: %s", shown, err), "give it to this worker"
		}
		value = strings.TrimSpace(text)
	}
	written := sealed || !reference // by the author of the definition, not the operator of the worker
	if written && problem.What == "" {
		switch {
		case mongo.UsesMachine(value):
			problem.What = "logs in with the identity of the worker's machine, which would send a token of it to any host"
		case mongo.HasSocket(value):
			problem.What = "names a socket, which is a file of the worker's machine"
		}
		problem.How = "give the connection string to the workers, and write env:NAME or file:NAME"
	}
	if written && problem.What == "" {
		value, err = mongo.ReplaceFiles(value, func(_, file string) (string, error) { return access.File(file) })
		if err != nil {
			problem.What, problem.How = err.Error(), "put the file there, and name it by its path in that directory"
		}
	}
	if problem.What != "" {
		l.problems = append(l.problems, problem)
		value = placeholder
	}
	return prefix + value
}

// sealedPrefix begins a value that only processes with the key can read.
const sealedPrefix = "sealed:"

type sealed struct {
	// Jobs are patterns of job names; none is all. They keep others from using the value in a job of their own.
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
		return "", fmt.Errorf("read --recipient: %w", err)
	}
	for _, p := range jobs {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return "", fmt.Errorf("--job %q is not a pattern of names: use * and ?, as in shop-*", p)
		}
	}
	if value == "" {
		return "", errors.New("the value on standard input is empty")
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
		return "", errors.New("the sealed value has no secret in it")
	}
	return s.Value, allowed(job, s.Jobs)
}

// Given is a setting with the values that a flag of its name would take.
type Given struct {
	Name   string
	Values []string
}

// ReadSettings returns what a valid definition sets, in the order of its text.
func ReadSettings(text string) (out []Given) {
	entries, _ := parseFile("settings", []byte(text), CommandSync)
	for _, e := range entries {
		out = append(out, Given{e.key, e.values})
	}
	return out
}

// ForJobs returns a text with settings of a definition in place of the flags of millrace sync. A definition has no
// restart: another job begins anew.
func ForJobs(text string) string {
	if !strings.Contains(text, "--") {
		return text
	}
	var s Sync
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.Bind(fs, CommandSync)
	text = strings.NewReplacer("another --job, or --restart", "a new job", "another --job", "a new job",
		"with --restart, with", "as a new job, with", "with --restart and", "as a new job with",
		"with --restart", "as a new job", ", or --restart", ", or a new job", "--restart", "a new job").Replace(text)
	flag := regexp.MustCompile(`--([a-z]+(?:-[a-z]+)*)( (\S*[^\s,;:.)]))?`)
	var b strings.Builder
	end := 0
	for _, m := range flag.FindAllStringSubmatchIndex(text, -1) {
		f := fs.Lookup(text[m[2]:m[3]])
		if f == nil || slices.Contains(ofProcess(), f.Name) {
			continue
		}
		value := ""
		if m[6] >= 0 {
			value = text[m[6]:m[7]]
		}
		b.WriteString(text[end:m[0]])
		switch end = m[3]; {
		case f.Value.Type() == "bool":
			b.WriteString(f.Name + ": true")
		case slices.Contains(Choices(f), value) || len(Choices(f)) == 0 && strings.ContainsAny(value, "=0123456789"):
			b.WriteString(f.Name + ": " + value)
			end = m[7]
		default:
			b.WriteString("“" + f.Name + "”")
		}
	}
	return b.String() + text[end:]
}
