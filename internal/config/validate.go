package config

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// checker collects the problems of one command's settings.
type checker struct {
	origins  Origins
	problems Problems
}

func (c *checker) fail(setting, what, how string) {
	c.problems = append(c.problems, Problem{Setting: setting, Where: c.origins[setting].String(), What: what, How: how})
}

// bad fails when something is so.
func (c *checker) bad(is bool, setting, what, how string) {
	if is {
		c.fail(setting, what, how)
	}
}

func (c *checker) oneOf(setting, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	how := "use " + strings.Join(allowed[:len(allowed)-1], ", ") + " or " + allowed[len(allowed)-1]
	c.fail(setting, fmt.Sprintf("%q is unknown", value), how)
}

func (c *checker) notBelowZero(setting string, value int) {
	c.bad(value < 0, setting, fmt.Sprintf("%d is too small", value), "use 0 or more")
}

func (c *checker) notNegative(setting string, d time.Duration) {
	c.bad(d < 0, setting, d.String()+" is negative", "use 0 or a duration such as 30s, 10m or 2h")
}

func (c *checker) common(s Common) {
	c.oneOf("output", s.Output, "text", "json")
	c.oneOf("log-level", s.LogLevel, "debug", "info", "warn", "error")
	c.oneOf("log-format", s.LogFormat, "text", "json")
}

func (c *checker) clusters(s Clusters) {
	c.uri(flagSource, s.Source)
	c.uri(flagTarget, s.Target)
}

func (c *checker) uri(setting, uri string) {
	if uri == "" {
		c.fail(setting, "is missing", "give --"+setting+", "+EnvName(setting)+" or a config file")
		return
	}
	if err := mongo.CheckURI(uri); err != nil {
		c.fail(setting, "cannot be used: "+err.Error(), mongo.HintOf(err))
	}
}

// job checks a job's name: it becomes a key in the target and a file name.
func (c *checker) job(name string) {
	if name != "" && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`).MatchString(name) {
		c.fail("job", fmt.Sprintf("%q is not a usable name", name), "use up to 64 letters, digits, dots, hyphens and underscores")
	}
}

// report checks that a report can be written, before hours of work whose
// result it is to hold.
func (c *checker) report(path string) {
	if path == "" {
		return
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		c.fail("report", fmt.Sprintf("%q is a directory", path), "give the path of a file")
		return
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		c.fail("report", fmt.Sprintf("%q is in a directory that does not exist", path), "create the directory first")
	}
}

func (c *checker) limits(l Limits) {
	c.bad(l.MaxRateDocs < 0, flagRateDocs, fmt.Sprintf("%d is below zero", l.MaxRateDocs), "0 is unlimited")
	c.bytes(flagRateBytes, l.MaxRateBytes, "0 is unlimited")
}

func (c *checker) loads(l Loads) {
	for _, s := range []struct{ setting, value string }{{flagSourceLoad, l.SourceLoad}, {flagTargetLoad, l.TargetLoad}} {
		c.oneOf(s.setting, s.value, string(pace.Low), string(pace.Normal), string(pace.Max))
	}
}

func (c *checker) bytes(setting, text, zero string) {
	if _, err := parseBytes(text); err != nil {
		c.fail(setting, err.Error(), "write for example 50MB or 8MiB; "+zero)
	}
}

// given notes which limits throttle was given; one is the least.
func (c *checker) given(s *Control) {
	if s.command != CommandThrottle {
		return
	}
	c.limits(s.limits)
	c.loads(s.loads)
	rates := s.limits.rates()
	if _, ok := c.origins[flagRateDocs]; ok {
		s.Limits.Docs = &rates.Docs
	}
	if _, ok := c.origins[flagRateBytes]; ok {
		s.Limits.Bytes = &rates.Bytes
	}
	loads := s.loads.loads()
	if _, ok := c.origins[flagSourceLoad]; ok {
		s.Limits.Source = loads.Source
	}
	if _, ok := c.origins[flagTargetLoad]; ok {
		s.Limits.Target = loads.Target
	}
	if l := &s.Limits; l.Docs == nil && l.Bytes == nil && l.Source == "" && l.Target == "" {
		c.fail(flagRateDocs, "is missing, and so are "+flagRateBytes+", "+flagSourceLoad+" and "+flagTargetLoad,
			"give what is to change; a limit of 0 lifts it")
	}
}

func (c *checker) address(setting, value string) {
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		c.fail(setting, fmt.Sprintf("%q is not host:port", value), "write for example 127.0.0.1:7000")
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		c.fail(setting, fmt.Sprintf("%q has no usable port", value), "use a port from 0 to 65535")
	}
	c.bad(strings.ContainsAny(host, "/@ "), setting, fmt.Sprintf("%q has no usable host", value), "write for example 127.0.0.1:7000")
}

func (c *checker) token(token string) {
	if token != "" && (len(token) < 16 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })) {
		c.fail(flagToken, "is too weak", "use 16 or more letters and digits")
	}
}

// Validate reports everything that is wrong with the settings, as Problems,
// without connecting anywhere.
func (s *Sync) Validate(o Origins) error {
	c := checker{origins: o}
	c.clusters(s.Clusters)
	c.namespaces(s.Namespaces)
	c.oneOf("mode", s.Mode, "all", "full", "incremental")
	c.start(s)
	c.until(s)
	c.job(s.Job)
	c.oneOf("on-existing", s.OnExisting, "fail", "merge", "drop")
	c.oneOf("on-conflict", s.OnConflict, "stop", "skip", "overwrite")
	c.writeConcern(s.WriteConcern)
	c.reading(s)
	c.notBelowZero("readers", s.Readers)
	c.notBelowZero("writers", s.Writers)
	c.notBelowZero("partitions", s.Partitions)
	c.limits(s.Limits)
	c.loads(s.Loads)
	c.bytes("spool-max", s.SpoolMax, "0 keeps none")
	c.notNegative("warn-window", s.WarnWindow)
	c.notNegative("give-up-after", s.GiveUpAfter)
	c.report(s.Report)
	c.address("listen", s.Listen)
	c.token(s.Token)
	c.common(s.Common)
	return c.problems.orNil()
}

func (c *checker) start(s *Sync) {
	switch {
	case s.StartAt == "":
		return
	case s.Mode == "all" || s.Mode == "full":
		c.fail("start-at", "is for incremental mode; a copy takes its own start", "add --mode incremental or leave it out")
	case s.StartAt == "checkpoint":
		c.bad(s.Restart, "start-at", "names the checkpoint that --restart forgets", "leave out one of the two")
	default:
		if _, err := mongo.ParseOpTime(s.StartAt); err != nil {
			c.fail("start-at", fmt.Sprintf("%q is not a position", s.StartAt),
				"write seconds:increment (1700000000:1), a time (2026-01-02T15:04:05Z) or checkpoint")
		}
	}
}

func (c *checker) until(s *Sync) {
	if s.Until == "never" || s.Until == "caught-up" {
		return
	}
	if _, err := time.Parse(time.RFC3339, s.Until); err != nil {
		c.fail("until", fmt.Sprintf("%q is unknown", s.Until), "use never, caught-up or a time (2026-01-02T15:04:05Z)")
		return
	}
	c.bad(s.Mode == "full", "until", "is a time, but a full copy ends by itself", "leave it out")
}

func (c *checker) writeConcern(w string) {
	_, err := mongo.ParseWriteConcern(w)
	c.bad(err != nil || w == "", "write-concern", fmt.Sprintf("%q is unknown", w), "use majority or a number of members from 1 to 50")
}

func (c *checker) reading(s *Sync) {
	modes := []string{"primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"}
	c.oneOf("read-preference", s.ReadPreference, modes...)
	if _, err := mongo.ParseReadPreference(s.ReadPreference, s.ReadTags); err != nil && slices.Contains(modes, s.ReadPreference) {
		c.fail("read-tags", "cannot be used: "+err.Error(), "write for example dc:east,rack:1;dc:west, and add --read-preference secondary or another")
	}
}

// Validate reports everything that is wrong with the settings, as Problems,
// without connecting anywhere.
func (v *Verify) Validate(o Origins) error {
	c := checker{origins: o}
	c.clusters(v.Clusters)
	c.namespaces(v.Namespaces)
	c.oneOf("method", v.Method, "auto", "ranges", "digest")
	c.notNegative("recheck-for", v.RecheckFor)
	c.notBelowZero("workers", v.Workers)
	c.notBelowZero("max-differences", v.MaxDifferences)
	c.report(v.Report)
	c.common(v.Common)
	return c.problems.orNil()
}

// Validate reports everything that is wrong with the settings, as Problems.
func (s *Control) Validate(o Origins) error {
	c := checker{origins: o}
	if s.Address != "" {
		c.address("address", s.Address)
	}
	c.job(s.Job)
	c.token(s.Token)
	c.bad(s.Watch && s.Interval < 100*time.Millisecond, "interval", s.Interval.String()+" is too short", "use 100ms or more")
	c.given(s)
	c.common(s.Common)
	return c.problems.orNil()
}
