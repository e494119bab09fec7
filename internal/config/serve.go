package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/service"
)

// Work are the settings of a process that runs jobs of the service.
type Work struct {
	Name       string
	Labels     map[string]string
	MaxJobs    int
	SpoolDir   string
	SecretsDir string
	SecretsKey string
	// TLSDir is where connection strings of jobs may name files.
	TLSDir string
	// SpoolBytes bounds what a job may keep in SpoolDir.
	SpoolBytes int64
	// OTLPEndpoint is where traces go; "" leaves it to the variables of OpenTelemetry.
	OTLPEndpoint string

	labels   []string
	spoolMax string
}

func (w *Work) vars() Vars {
	return Vars{"name": &w.Name, "label": &w.labels, "max-jobs": &w.MaxJobs, flagSpoolDir: &w.SpoolDir,
		"spool-max": &w.spoolMax, "tls-dir": &w.TLSDir, "secrets-dir": &w.SecretsDir, "secrets-key": &w.SecretsKey,
		"otlp-endpoint": &w.OTLPEndpoint}
}

func (w *Work) validate(c *checker) {
	var err error
	if w.Labels, err = service.ParseLabels(w.labels); err != nil {
		c.fail("label", "cannot be used: "+err.Error(), "write --label dc=east")
	}
	c.notBelowZero("max-jobs", w.MaxJobs)
	if w.Name == "" {
		host, _ := os.Hostname()
		w.Name = strings.Map(keyRune, fmt.Sprintf("%s-%d", host, os.Getpid()))
	}
	if err := service.CheckName(w.Name); err != nil {
		c.fail("name", "cannot be used: "+err.Error(), "choose another one")
	}
	w.SpoolBytes = c.bytes("spool-max", w.spoolMax, "write for example 50MB or 8MiB; 0 keeps none")
	c.existing("tls-dir", w.TLSDir, "make it, and put the files of the jobs there")
	c.existing("secrets-dir", w.SecretsDir, "make it, for the user of this process alone")
	if w.OTLPEndpoint != "" {
		u, err := url.Parse(w.OTLPEndpoint)
		c.bad(err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "",
			"otlp-endpoint", "cannot be used", "write http://127.0.0.1:4318, or https:// where the collector has a "+
				"certificate; give what it asks for in OTEL_EXPORTER_OTLP_HEADERS")
	}
	if w.SecretsKey != "" {
		_, err := os.Stat(w.SecretsKey)
		c.bad(err != nil, "secrets-key", "cannot be read", "make it with millrace secrets keygen")
		c.bad(open(w.SecretsKey), "secrets-key", "can be read or written by other users",
			"chmod 600 it")
	}
}

func (c *checker) existing(setting, name, how string) {
	if name != "" {
		info, err := os.Stat(name)
		c.bad(err != nil || !info.IsDir(), setting, "is not a directory", how)
	}
}

func keyRune(r rune) rune {
	if r < 0x80 && (r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z') {
		return r
	}
	return '-'
}

// secretEnv begins the variables that settings of jobs may refer to. Others are not
// theirs to read: who makes jobs need not be who runs the machine.
const secretEnv = "MILLRACE_SECRET_"

// Access returns what definitions refer to, as far as the operator of this process allows it.
func (w *Work) Access(lookupEnv func(string) (string, bool)) *Access {
	return &Access{File: w.file, Secret: func(job, reference string) (string, error) {
		if name, ok := strings.CutPrefix(reference, "env:"); ok {
			value, ok := lookupEnv(secretEnv + name)
			if !ok || value == "" || strings.HasSuffix(name, "_JOBS") {
				return "", fmt.Errorf("the variable %s%s is not set", secretEnv, name)
			}
			jobs, listed := lookupEnv(secretEnv + name + "_JOBS")
			return value, listedFor(job, listed, strings.FieldsFunc(jobs, func(r rune) bool { return r == ',' || r == ' ' }))
		}
		if text, ok := strings.CutPrefix(reference, sealedPrefix); ok {
			if w.SecretsKey == "" {
				return "", errors.New("this process has no --secrets-key")
			}
			return unseal(w.SecretsKey, job, text)
		}
		return w.secretFile(job, strings.TrimPrefix(reference, "file:"))
	}}
}

// secretFile reads a file of --secrets-dir, which NAME.jobs beside it may restrict to some jobs.
func (w *Work) secretFile(job, name string) (string, error) {
	if w.SecretsDir == "" {
		return "", errors.New("this process has no --secrets-dir")
	}
	root, err := os.OpenRoot(w.SecretsDir) // nothing outside, also not through a link
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	name = filepath.Clean(name)
	none := fmt.Errorf("--secrets-dir has no readable file %s", name)
	if strings.HasSuffix(name, listSuffix) {
		return "", none
	}
	f, err := root.Open(name)
	if err != nil {
		return "", none
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(f)
	info, statErr := f.Stat()
	if err != nil || statErr != nil {
		return "", none
	}
	return string(raw), listedBeside(root, info, job)
}

// listSuffix ends the name of a file that lists the jobs that may use the secret beside it.
const listSuffix = ".jobs"

// listedBeside applies the lists beside all names of a file: a link must not evade the list of what it leads to, nor
// the other way round.
func listedBeside(root *os.Root, secret os.FileInfo, job string) error {
	return fs.WalkDir(root.FS(), ".", func(list string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) && list != "." {
			return fs.SkipDir
		}
		if err != nil {
			return fmt.Errorf("read --secrets-dir: %w", err)
		}
		name, isList := strings.CutSuffix(list, listSuffix)
		if !isList {
			return nil
		}
		if named, _ := root.Stat(name); named == nil || !os.SameFile(named, secret) {
			return nil
		}
		jobs, err := root.ReadFile(list)
		if err != nil {
			return fmt.Errorf("cannot read %s in --secrets-dir, which lists the jobs that may use it", list)
		}
		return listedFor(job, true, strings.Fields(string(jobs)))
	})
}

// listedFor is allowed for a list that an operator wrote. An empty list is for no job.
func listedFor(job string, listed bool, patterns []string) error {
	if listed && len(patterns) == 0 {
		return errors.New("the list of the jobs that may use the secret is empty")
	}
	return allowed(job, patterns)
}

// allowed returns an error where a secret lists the jobs that may use it, and not this one. The process itself, job "",
// may use all.
func allowed(job string, patterns []string) error {
	if job != "" && !service.MatchJob(patterns, job) {
		return fmt.Errorf("the secret is for jobs of other names than %s", job)
	}
	return nil
}

// maxTLSFile bounds a certificate or key, in bytes.
const maxTLSFile = 1 << 20

// file returns the path of a file in TLSDir. All failures have one text, so that nobody learns which files exist.
func (w *Work) file(name string) (string, error) {
	refused := errors.New("names a file that this process may not use: only readable files of at most 1 MB below its " +
		"--tls-dir")
	if w.TLSDir == "" {
		return "", refused
	}
	dir, err := filepath.Abs(w.TLSDir)
	if err != nil {
		return "", refused
	}
	if filepath.IsAbs(name) { // the path as a person sees it there
		if name, err = filepath.Rel(dir, name); err != nil {
			return "", refused
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", refused
	}
	defer func() { _ = root.Close() }()
	// Lstat, for a link could lead to another file by the time the driver opens it.
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() || info.Size() > maxTLSFile {
		return "", refused
	}
	f, err := root.Open(name)
	if err != nil {
		return "", refused
	}
	return filepath.Join(dir, name), f.Close()
}

// NATS are the settings of a connection to a NATS cluster.
type NATS struct {
	URI, Creds, TokenFile string
	Replicas              int
	Lease                 time.Duration
}

func (n *NATS) vars() Vars {
	return Vars{"nats": &n.URI, "nats-creds": &n.Creds, "nats-token-file": &n.TokenFile, "nats-replicas": &n.Replicas,
		"lease": &n.Lease}
}

func (n *NATS) validate(c *checker) {
	for _, uri := range strings.Split(n.URI, ",") {
		u, err := url.Parse(uri)
		c.bad(n.URI != "" && (err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" ||
			strings.ContainsAny(uri, "@?#")), "nats", "cannot be used", "write nats://host:4222 or tls://host:4222, several "+
			"with commas; give a secret with --nats-token-file or --nats-creds")
	}
	c.bad(!slices.Contains([]int{0, 1, 3, 5}, n.Replicas), "nats-replicas", "cannot be used", "give 1, 3 or 5")
	c.bad(n.Lease < 3*time.Second, "lease", "is too short", "give at least 3s")
}

// Serve are the settings of `millrace serve`.
type Serve struct {
	Common
	Work
	NATS
	DataDir         string
	Listen          string
	TLSCert, TLSKey string
	Tokens          string
	OIDC            string
	Alerts          string
	Insecure        bool
	// Proxies are the networks of proxies, whose X-Forwarded-For header names the client.
	Proxies    []netip.Prefix
	NATSListen string
	NoWorker   bool

	proxies []string
}

// Bind implements Settings.
func (s *Serve) Bind(fs *pflag.FlagSet, _ string) {
	Bind(fs, flagTexts, CommandServe, s.Common.vars(fs), s.Work.vars(), s.NATS.vars(), Vars{
		"listen": &s.Listen, flagListenCert: &s.TLSCert, flagListenKey: &s.TLSKey, "listen-insecure": &s.Insecure,
		"trusted-proxy": &s.proxies, "tokens": &s.Tokens, "oidc": &s.OIDC, "alerts": &s.Alerts, "data-dir": &s.DataDir,
		"nats-listen": &s.NATSListen, "no-worker": &s.NoWorker,
	})
}

// Validate implements Settings.
func (s *Serve) Validate(o Origins, _ []string) Problems {
	c := newChecker(&s.Common, o)
	c.listen(s.Listen, &s.TLSCert, &s.TLSKey, s.Insecure)
	if s.NATSListen != "" {
		c.address("nats-listen", s.NATSListen)
		c.closed("nats-listen", s.NATSListen, s.Insecure || s.TLSCert != "")
		c.bad(s.URI != "", "nats-listen", "is of the own NATS server, and --nats names another", "leave one of them out")
	}
	c.bad(s.URI == "" && (s.Creds != "" || s.TokenFile != "" || s.Replicas != 0), "nats", "is missing",
		"--nats-creds, --nats-token-file and --nats-replicas are for a cluster that --nats names")
	for _, text := range s.proxies {
		p, err := netip.ParsePrefix(text)
		if ip, one := netip.ParseAddr(text); one == nil {
			p, err = ip.Prefix(ip.BitLen())
		}
		c.bad(err != nil, "trusted-proxy", fmt.Sprintf("%q is neither an address nor a network", text),
			"write 10.0.0.1 or 10.0.0.0/24")
		s.Proxies = append(s.Proxies, p.Masked())
	}
	s.NATS.validate(c)
	s.Work.validate(c)
	return c.problems
}

// Worker are the settings of `millrace worker`.
type Worker struct {
	Common
	Work
	NATS
}

// Bind implements Settings.
func (s *Worker) Bind(fs *pflag.FlagSet, _ string) {
	Bind(fs, flagTexts, CommandWorker, s.Common.vars(fs), s.Work.vars(), s.NATS.vars())
}

// Validate implements Settings.
func (s *Worker) Validate(o Origins, _ []string) Problems {
	c := newChecker(&s.Common, o)
	c.bad(s.URI == "", "nats", "is missing", "give --nats, "+EnvName("nats")+" or a config file")
	s.NATS.validate(c)
	s.Work.validate(c)
	return c.problems
}
