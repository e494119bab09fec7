package config

import (
	"errors"
	"fmt"
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

func (w *Work) bind(fs *pflag.FlagSet) {
	fs.StringVar(&w.Name, "name", "", "`name` of the worker; by default host name and process id")
	fs.StringArrayVar(&w.labels, "label", nil, "`key=value` that jobs may require of their worker; may be repeated")
	fs.IntVar(&w.MaxJobs, "max-jobs", 0, "most jobs at once; 0 is unlimited")
	bindSpool(fs, &w.SpoolDir, &w.spoolMax)
	fs.StringVar(&w.TLSDir, "tls-dir", "", "`directory` of certificates and keys that jobs may name\nwithout it, "+
		"connection strings of jobs may name no files")
	fs.StringVar(&w.SecretsDir, "secrets-dir", "", "`directory` of secrets that jobs name as file:NAME\n"+
		"env:NAME is the variable MILLRACE_SECRET_NAME")
	fs.StringVar(&w.SecretsKey, "secrets-key", "",
		"`file` with the key of sealed values, from millrace secrets keygen")
	fs.StringVar(&w.OTLPEndpoint, "otlp-endpoint", "",
		"`URL` of an OpenTelemetry collector for traces, by OTLP over HTTP\nsuch as http://127.0.0.1:4318; by default "+
			"OTEL_EXPORTER_OTLP_ENDPOINT; without either, no traces")
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
	raw, err := root.ReadFile(name)
	info, statErr := root.Stat(name)
	if err != nil || statErr != nil || strings.HasSuffix(name, listSuffix) {
		return "", fmt.Errorf("--secrets-dir has no readable file %s", name)
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

func (n *NATS) bind(fs *pflag.FlagSet, uri string) {
	fs.StringVar(&n.URI, "nats", "", uri)
	fs.StringVar(&n.Creds, "nats-creds", "", "`file` with the credentials for NATS")
	fs.StringVar(&n.TokenFile, "nats-token-file", "", "`file` with the secret for NATS")
	fs.IntVar(&n.Replicas, "nats-replicas", 0,
		"NATS nodes that store everything: 1, 3 or 5\n0 is 3 in a cluster, 1 with a "+
			"single server; the same for all processes of a service")
	fs.DurationVar(&n.Lease, "lease", 15*time.Second,
		"time after which others take the jobs of a silent worker\nthe same for all processes of a service")
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
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:8470", "`address` of API and console, host:port; port 0 takes a free one")
	bindTLS(fs, &s.TLSCert, &s.TLSKey, "read again for each connection")
	fs.BoolVar(&s.Insecure, "listen-insecure", false,
		"permit remote access to API, console and NATS without TLS\nwhoever sees the traffic can then use the tokens")
	fs.StringArrayVar(&s.proxies, "trusted-proxy", nil, "`address` or network of a proxy that sets X-Forwarded-For\n"+
		"such as 10.0.0.1 or 10.0.0.0/24; may be repeated")
	fs.StringVar(&s.Tokens, "tokens", "",
		"`file` of tokens with their roles\nby default one token for everything, in the file "+
			"token of --data-dir")
	fs.StringVar(&s.OIDC, "oidc", "",
		"`file` of the OpenID Connect provider for logins, and its roles\nthe API takes its "+
			"tokens too")
	section(fs, "API and console")
	fs.StringVar(&s.Alerts, "alerts", "",
		"`file` of alert rules, webhooks and mail addresses\nby default the usual rules, "+
			"shown in API and console only")
	section(fs, "Alerts")
	fs.StringVar(&s.DataDir, "data-dir", "",
		"`directory` of the service's own NATS and tokens\nby default millrace/service below $XDG_STATE_HOME or "+
			"~/.local/state")
	s.NATS.bind(fs, "`URI` of a NATS cluster with JetStream that stores everything\nnats://host:4222, "+
		"several with commas; by default a server in this process")
	fs.StringVar(&s.NATSListen, "nats-listen", "", "`address` of the own NATS server for remote workers, host:port\n"+
		"their secret is in the file nats-token of --data-dir")
	section(fs, "Store")
	fs.BoolVar(&s.NoWorker, "no-worker", false, "run no jobs in this process; millrace worker does")
	s.Work.bind(fs)
	section(fs, "Running jobs")
	s.Common.bind(fs)
	section(fs, outputSection)
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
	s.NATS.bind(fs, "`URI` of the service's NATS\nnats://host:4222, several with commas")
	section(fs, "Store")
	s.Work.bind(fs)
	section(fs, "Running jobs")
	s.Common.bind(fs)
	section(fs, outputSection)
}

// Validate implements Settings.
func (s *Worker) Validate(o Origins, _ []string) Problems {
	c := newChecker(&s.Common, o)
	c.bad(s.URI == "", "nats", "is missing", "give --nats, "+EnvName("nats")+" or a config file")
	s.NATS.validate(c)
	s.Work.validate(c)
	return c.problems
}
