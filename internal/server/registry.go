package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/outfile"
)

// Record says where a running sync can be controlled. Only its owner can read it, for it has the token.
type Record struct {
	Job       string    `json:"job"`
	PID       int       `json:"pid"`
	Host      string    `json:"host"`    // the machine: home directories may be shared
	Address   string    `json:"address"` // a URL
	Token     string    `json:"token"`
	Cert      string    `json:"certificate,omitempty"` // the file that TLS was given
	Target    string    `json:"target"`                // without a password
	StartedAt time.Time `json:"startedAt"`
	// EndedAt is when the job was finalized or failed, Last its status then.
	EndedAt *time.Time      `json:"endedAt,omitempty"`
	Last    json.RawMessage `json:"last,omitempty"`
}

// Endpoint is the URL of the sync's API, with an HTTP client for it.
func (rec Record) Endpoint() (string, *http.Client) {
	at, c, t := Endpoint(rec.Address)
	if rec.Cert != "" {
		trustOnly(t, rec.Cert)
	}
	return at, c
}

// Registry is the directory with the records of this user's running syncs.
type Registry struct {
	Dir string
}

// NewRegistry finds the directory: run below that of StateDir.
func NewRegistry(lookupEnv func(string) (string, bool)) (Registry, error) {
	dir, err := StateDir(lookupEnv)
	return Registry{Dir: filepath.Join(dir, "run")}, err
}

// StateDir is the directory of this machine and user: millrace below XDG_STATE_HOME or ~/.local/state.
func StateDir(lookupEnv func(string) (string, bool)) (string, error) {
	if dir, ok := lookupEnv("XDG_STATE_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "millrace"), nil
	}
	home, ok := lookupEnv("HOME")
	if !ok || home == "" {
		var err error
		if home, err = os.UserHomeDir(); err != nil {
			return "", mongo.WithHint(fmt.Errorf("find the state directory: %w", err), "set XDG_STATE_HOME")
		}
	}
	return filepath.Join(home, ".local", "state", "millrace"), nil
}

// Add records a running sync. The function that it returns replaces the record by the last status of the job, or
// removes it if last is nil.
func (r Registry) Add(rec Record) (end func(last any) error, err error) {
	if rec.Host == "" {
		rec.Host, _ = os.Hostname()
	}
	path := filepath.Join(r.Dir, fileName(rec))
	r.forget(rec.Job)
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("record the running sync: %w", err)
	}
	write := func() error {
		return mongo.Wrap(outfile.Replace(path, func(f *os.File) error { return json.NewEncoder(f).Encode(rec) }),
			"record the sync of job %s", rec.Job)
	}
	return func(last any) (err error) {
		if last == nil {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the record of the sync: %w", err)
			}
			return nil
		}
		now := time.Now().UTC()
		rec.EndedAt, rec.Token = &now, ""
		if rec.Last, err = json.Marshal(last); err != nil {
			return fmt.Errorf("record the end of the sync: %w", err)
		}
		return write()
	}, write()
}

func fileName(rec Record) string {
	safe := regexp.MustCompile(`[^-_.0-9A-Za-z]`).ReplaceAllString(rec.Job, "_")
	return strings.TrimLeft(safe[:min(len(safe), 100)], ".") + "-" + strconv.Itoa(rec.PID) + ".json"
}

// Running returns the syncs of this machine that answer, oldest first.
func (r Registry) Running(ctx context.Context) ([]Record, error) {
	var out []Record
	err := r.each(func(_ string, rec Record, gone bool) {
		if !gone && answers(ctx, rec) {
			out = append(out, rec)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Record) int { return a.StartedAt.Compare(b.StartedAt) })
	return out, ctx.Err()
}

// Gone returns the newest wanted sync of this machine that has ended or whose process died; false for none.
func (r Registry) Gone(w Wanted) (last Record, found bool) {
	_ = r.each(func(_ string, rec Record, gone bool) {
		if gone && w.has(rec) && (!found || rec.StartedAt.After(last.StartedAt)) {
			last, found = rec, true
		}
	})
	return last, found
}

// forget removes records of syncs that are gone: of one job, and very old ones.
func (r Registry) forget(job string) {
	const veryOld = 30 * 24 * time.Hour
	_ = r.each(func(path string, rec Record, gone bool) {
		if gone && (rec.Job == job || time.Since(rec.StartedAt) > veryOld) {
			_ = os.Remove(path)
		}
	})
}

// each visits the records of this machine; gone says that the sync has ended, or its process does not exist.
func (r Registry) each(do func(path string, rec Record, gone bool)) error {
	entries, err := os.ReadDir(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for running syncs: %w", err)
	}
	host, _ := os.Hostname()
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(r.Dir, e.Name())
		if rec, ok := read(path); ok && rec.Host == host {
			do(path, rec, rec.EndedAt != nil || errors.Is(syscall.Kill(rec.PID, 0), syscall.ESRCH))
		}
	}
	return nil
}

func read(path string) (Record, bool) {
	var rec Record
	raw, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(raw, &rec) != nil || rec.PID <= 0 || rec.Address == "" {
		return rec, false
	}
	return rec, true
}

// answers tells a sync from a process that took over its number or port, without sending the token.
func answers(ctx context.Context, rec Record) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	at, c := rec.Endpoint()
	defer c.CloseIdleConnections()
	res, err := Exchange(ctx, c, Request{Method: http.MethodGet, URL: at + PathHealth})
	var h Health
	return err == nil && res.Code == http.StatusOK && json.Unmarshal(res.Body, &h) == nil && h.PID == rec.PID
}

// Wanted chooses a running sync. Fields that are "" choose all.
type Wanted struct {
	Address, Job string
	Target       string // a connection string that has a host in common with the sync's target
}

func (w Wanted) has(rec Record) bool {
	return (w.Address == "" || HostPort(rec.Address) == HostPort(w.Address)) && (w.Job == "" || rec.Job == w.Job) &&
		(w.Target == "" || rec.Target == "" || shareHost(rec.Target, w.Target))
}

func shareHost(a, b string) bool {
	hosts := func(uri string) []string {
		_, list, _ := strings.Cut(strings.ToLower(mongo.Redact(uri)), "://")
		all := strings.Split(list, ",")
		for i, host := range all {
			all[i] = strings.TrimSuffix(host, ":27017")
		}
		return all
	}
	return slices.ContainsFunc(hosts(a), func(host string) bool { return slices.Contains(hosts(b), host) })
}

// ErrSeveral says that several syncs fit.
var ErrSeveral = errors.New("several syncs run on this machine")

// Find returns the wanted sync among those that run, which has to be the only one.
func (r Registry) Find(ctx context.Context, w Wanted) (Record, error) {
	all, err := r.Running(ctx)
	if err != nil {
		return Record{}, err
	}
	found := slices.DeleteFunc(slices.Clone(all), func(rec Record) bool { return !w.has(rec) })
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Record{}, mongo.WithHint(fmt.Errorf("%w: %s", ErrSeveral, list(found)),
			"choose one with --job or --address")
	case len(all) > 0:
		return Record{}, mongo.WithHint(errors.New("no such sync runs on this machine"), "these run: "+list(all))
	}
	return Record{}, mongo.WithHint(errors.New("no sync runs on this machine under this user"),
		"for a sync elsewhere give --address and set MILLRACE_TOKEN; for one that has ended give --target")
}

// HostPort is an address without its scheme.
func HostPort(address string) string {
	return strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://")
}

func list(recs []Record) string {
	each := make([]string, len(recs))
	for i, rec := range recs {
		each[i] = rec.Job + " at " + rec.Address
	}
	return strings.Join(each, ", ")
}
