package config

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/outfile"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/reverse"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

type checker struct {
	origins  Origins
	problems Problems
}

// newChecker begins with the settings that take one of a few words.
func newChecker(s *Common, o Origins) *checker {
	return &checker{origins: o, problems: CheckChoices(s.flags, o)}
}

// CheckChoices finds the flags whose value is none of the words that they take.
func CheckChoices(fs *pflag.FlagSet, o Origins) Problems {
	c := checker{origins: o}
	fs.VisitAll(func(f *pflag.Flag) {
		allowed, last := Choices(f), len(Choices(f))-1
		if last > 0 && !slices.Contains(allowed, f.Value.String()) {
			c.fail(f.Name, fmt.Sprintf("%q is unknown", f.Value), "use "+strings.Join(allowed[:last], ", ")+" or "+allowed[last])
		}
	})
	return c.problems
}

func (c *checker) fail(setting, what, how string) { c.failAt(setting, allItems, what, how) }

func (c *checker) failAt(setting string, item int, what, how string) {
	origin := c.origins[setting]
	if item != allItems {
		origin = origin.item(item)
	}
	// Quoted, of a flag that takes something else.
	if user, _, ok := strings.Cut(what, "@"); ok && strings.Contains(user, ":") || mongo.HasPassword(what) {
		what = "cannot be used"
	}
	c.problems = append(c.problems, Problem{Setting: setting, Where: origin.String(), What: what, How: how})
}

func (c *checker) bad(is bool, setting, what, how string) {
	if is {
		c.fail(setting, what, how)
	}
}

func (c *checker) notBelowZero(setting string, value int) {
	c.bad(value < 0, setting, fmt.Sprintf("%d is too small", value), "use 0 or more")
}

// parallel bounds what runs at once: a job must not take all memory of a worker from others.
func (c *checker) parallel(setting string, value int) {
	const most = 256
	c.notBelowZero(setting, value)
	c.bad(value > most, setting, fmt.Sprintf("%d is too large", value), fmt.Sprintf("use %d or less", most))
}

func (c *checker) notNegative(setting string, d time.Duration) {
	c.bad(d < 0, setting, d.String()+" is negative", "use 0 or a duration such as 30s, 10m or 2h")
}

func (c *checker) clusters(source, target string) {
	c.uri(flagSource, source)
	c.uri(flagTarget, target)
	c.noDatabase(flagSource, source, "--include '%s.*'")
	c.noDatabase(flagTarget, target, "--rename from=%s")
}

// noDatabase refuses a connection string that names a database, except the one of all users.
func (c *checker) noDatabase(setting, uri, rule string) {
	if mongo.CheckURI(uri) != nil {
		return // and no part of it is quoted
	}
	if db := mongo.Database(uri); db != "" && db != "admin" && db != "$external" {
		c.fail(setting, fmt.Sprintf("names the database %q, which would choose nothing", db),
			fmt.Sprintf("leave it out of the address and give "+rule+"; if the user is defined in it, add authSource=%s after "+
				"a question mark", db, db))
	}
}

func (c *checker) uri(setting, uri string) {
	if uri == "" {
		c.fail(setting, "is missing", "give --"+setting+", "+EnvName(setting)+" or a config file")
	} else if err := mongo.CheckURI(uri); err != nil {
		// Not by fail, which keeps back a text with an @: this one quotes nothing.
		c.problems = append(c.problems, Problem{Setting: setting, Where: c.origins[setting].String(),
			What: "cannot be used: " + err.Error(), How: mongo.HintOf(err)})
	}
}

// namespaces checks each item alone, to report all bad ones, and then all together, because
// renames may contradict each other.
func (c *checker) namespaces(all transform.Config) {
	before := len(c.problems)
	one := transform.Config{Secret: all.Secret}
	for _, list := range []struct {
		setting string
		items   []string
		alone   *[]string // in one
	}{
		{"include", all.Include, &one.Include}, {"exclude", all.Exclude, &one.Exclude}, {"rename", all.Rename, &one.Rename},
		{"filter", all.Filter, &one.Filter}, {"skip", all.Skip, &one.Skip}, {"soft-delete", all.SoftDelete, &one.SoftDelete},
		{"history", all.History, &one.History}, {"fields", all.Fields, &one.Fields},
	} {
		for i := range list.items {
			*list.alone = list.items[i : i+1]
			c.rules(list.setting, i, one)
		}
		*list.alone = nil
	}
	if len(c.problems) == before {
		c.rules("rename", allItems, all)
	}
}

const allItems = -1

// rules reports the error of r, an item of a setting.
func (c *checker) rules(setting string, item int, r transform.Config) {
	if _, err := transform.New(r); err != nil {
		what, how, ok := strings.Cut(err.Error(), "; ")
		switch {
		case !ok && item != allItems:
			how = "write it as docs/reference/rules.md shows"
		case !ok:
			how = "leave out one of the rules"
		}
		c.failAt(setting, item, "cannot be used: "+what, how)
	}
}

// job checks a job's name, which becomes a key in the target and a file name.
func (c *checker) job(name string) {
	if name != "" && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`).MatchString(name) {
		c.fail("job", fmt.Sprintf("%q is not a usable name", name),
			"use up to 64 letters, digits, dots, hyphens and underscores")
	}
}

// report checks that a report can be written, before hours of work.
func (c *checker) report(path string) {
	if path == "" {
		return
	}
	if err := outfile.Check(path); err != nil {
		c.fail("report", fmt.Sprintf("%q cannot be written: %v", path, err),
			"give the path of a file in a directory that you may write to")
	}
}

func (c *checker) rates(docs int64, bytes string) int64 {
	c.bad(docs < 0, flagRateDocs, fmt.Sprintf("%d is below zero", docs), "0 is unlimited")
	return c.bytes(flagRateBytes, bytes, "write for example 50MB or 8MiB; 0 is unlimited")
}

func (c *checker) bytes(setting, text, how string) int64 {
	n, err := humanize.ParseBytes(text)
	c.bad(err != nil || n > math.MaxInt64, setting, fmt.Sprintf("%q is not an amount of bytes", text), how)
	return int64(n)
}

func (c *checker) applyBuffer(text string) int64 {
	const how = "write for example 256MiB, and at least 8MB"
	before := len(c.problems)
	n := c.bytes(flagApplyBuffer, text, how)
	c.bad(len(c.problems) == before && n < job.LeastApplyBuffer, flagApplyBuffer, fmt.Sprintf("%q is too small", text),
		how)
	return n
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
	c.bad(strings.ContainsAny(host, "/@ "), setting, fmt.Sprintf("%q has no usable host", value),
		"write for example 127.0.0.1:7000")
}

// listen checks the address and the TLS files of an API; open permits remote access without TLS.
func (c *checker) listen(address string, cert, key *string, open bool) {
	c.address("listen", address)
	if *cert == "" {
		c.bad(*key != "", flagListenKey, "is half of what is needed", "add --"+flagListenCert)
		c.closed("listen", address, open)
		return
	}
	*key = cmp.Or(*key, *cert)
	if _, err := tls.LoadX509KeyPair(*cert, *key); err != nil {
		c.fail(flagListenCert, "and "+flagListenKey+" cannot be used: "+err.Error(),
			"give a certificate and its key in PEM form")
	}
}

// closed refuses an address that other machines reach without TLS.
func (c *checker) closed(setting, address string, open bool) {
	how := "give --" + flagListenCert + ", listen on 127.0.0.1 behind a tunnel, or accept it with --listen-insecure"
	_, _, err := net.SplitHostPort(address) // its form is checked already
	c.bad(err == nil && !loopback.Host(address) && !open, setting,
		fmt.Sprintf("%q is open to other machines, and the token would cross the network in the clear", address), how)
}

func (c *checker) token(token string) {
	if token != "" && (len(token) < 16 || len(token) > 1024 ||
		strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })) {
		c.fail(flagToken, "is too weak, or too long", "use 16 to 1024 letters and digits")
	}
}

// Validate implements Settings.
func (s *Sync) Validate(o Origins, _ []string) Problems {
	c := newChecker(&s.Common, o)
	c.clusters(s.Source, s.Target)
	s.SourceShards, s.TargetShards = c.shards(flagSourceShard, s.sourceShards), c.shards(flagTargetShard, s.targetShards)
	c.namespaces(s.Rules)
	c.capture(s)
	c.keys(s.Shard)
	c.zones(s.Zones)
	c.start(s)
	c.copied(s)
	for i, name := range s.AcceptLoss {
		if !slices.Contains(reverse.Losses(), name) {
			c.failAt("accept-loss", i, fmt.Sprintf("%q is not a loss", name), "use "+strings.Join(reverse.Losses(), ", "))
		}
	}
	c.bad(s.AllowOverlap && s.OnExisting == job.ExistingDrop, "allow-overlap",
		"cannot go with --on-existing drop, which drops what the other job has made",
		"use --on-existing merge")
	c.until(s)
	c.structure(s)
	c.bad(s.Users && len(s.Rules.Rename) > 0, "users", "cannot go with --rename: roles name databases and collections of "+
		"the source", "leave one of them out")
	c.job(s.Job)
	_, err := mongo.ParseWriteConcern(s.WriteConcern)
	c.bad(err != nil || s.WriteConcern == "", "write-concern", fmt.Sprintf("%q is unknown", s.WriteConcern),
		"use majority or a number of members from 1 to 50")
	c.tags(s.ReadPreference, s.ReadTags)
	c.parallel("readers", s.Readers)
	c.parallel("writers", s.Writers)
	c.parallel("partitions", s.Partitions)
	s.ApplyBuffer = c.applyBuffer(s.applyBuffer)
	s.Limits.Bytes = c.rates(s.Limits.Docs, s.maxRateBytes)
	s.SpoolBytes = c.bytes("spool-max", s.spoolMax, "write for example 50MB or 8MiB; 0 keeps none")
	c.notNegative("warn-window", s.WarnWindow)
	c.notNegative("give-up-after", s.GiveUpAfter)
	c.notNegative("index-wait", s.IndexWait)
	c.report(s.Report)
	c.notNegative(flagProgress, s.ProgressInterval)
	if s.SteadyInterval = s.ProgressInterval; o[flagProgress].Kind == FromDefault {
		s.SteadyInterval = 5 * time.Minute
	}
	c.listen(s.Listen, &s.TLSCert, &s.TLSKey, s.Insecure)
	c.token(s.Token)
	s.Settings = s.given(o)
	return c.problems
}

// given returns the settings that resume a job beside those that its state tells, as words of a command line without
// secrets.
func (s *Sync) given(o Origins) (words []string) {
	stored := []string{flagConfig, flagSource, flagTarget, "mode", "start-at", "include", "exclude", "rename", "filter",
		"skip", "fields", "soft-delete", "history", "job", "restart", "on-existing", flagCapture, "dry-run", flagToken,
		"report", "output", "log-level", "log-format", flagProgress}
	// A copy by files needs the name of the set.
	if to, err := mongo.ParseURI(s.Target); s.Files != nil && err == nil && to.ReplicaSet != nil {
		words = append(words, "--"+flagTarget, mongo.Redact(s.Target)+"/?replicaSet="+*to.ReplicaSet)
	}
	s.flags.VisitAll(func(f *pflag.Flag) {
		if o[f.Name].Kind == FromDefault || slices.Contains(stored, f.Name) {
			return
		}
		values := []string{f.Value.String()}
		list, isList := f.Value.(pflag.SliceValue)
		switch {
		case f.Value.Type() == "bool": // the default of --users depends on --copy
			words = append(words, "--"+f.Name+"="+values[0])
			return
		case values[0] == f.DefValue:
			return
		case isList:
			values = list.GetSlice()
		}
		for _, v := range values {
			if f.Name == flagSourceShard || f.Name == flagTargetShard {
				name, uri, _ := strings.Cut(v, "=")
				v = name + "=" + mongo.Redact(uri)
			}
			words = append(words, "--"+f.Name, v)
		}
	})
	return words
}

func (c *checker) shards(flag string, list []string) map[string]string {
	all := map[string]string{}
	for i, one := range list {
		name, uri, ok := strings.Cut(one, "=")
		if !ok || name == "" || strings.Contains(name, "://") {
			c.failAt(flag, i, "is not name=URI",
				"write for example shard0=mongodb://host:27018/, with the name that config.shards has")
			continue
		}
		c.uri(flag, uri)
		c.bad(all[name] != "", flag, fmt.Sprintf("names %q twice", name), "leave out one of them")
		all[name] = uri
	}
	return all
}

func (c *checker) capture(s *Sync) {
	routers := s.Via == job.ViaRouters
	c.bad(routers && s.Capture == job.CaptureOplog, flagVia, "routers have no oplog",
		"leave --capture out, or use --via shards")
	c.bad(s.Via == job.ViaShards && s.Capture == job.CaptureStreams, flagVia,
		"shards cannot go with --capture change-streams, which go through routers",
		"leave one of them out")
	c.bad(routers && len(s.SourceShards) > 0, flagSourceShard, "cannot go with --via routers, which reads no shard",
		"leave one of them out")
}

func (c *checker) keys(rules []string) {
	fail := func(item int, err error) {
		c.failAt(flagShard, item, err.Error(),
			"write for example shop.orders=customer:1,_id:1, shop.orders=_id:hashed or shop.orders=none, each collection once")
	}
	before := len(c.problems)
	for i := range rules {
		if _, err := placing.ParseRules(rules[i : i+1]); err != nil {
			fail(i, err)
		}
	}
	if _, err := placing.ParseRules(rules); err != nil && len(c.problems) == before {
		fail(allItems, err)
	}
}

func (c *checker) zones(rules []string) {
	if _, err := placing.ParseZones(rules); err != nil {
		c.fail(flagZone, err.Error(), "write for example EU=shard0,shard1 or EU=none, each zone once")
	}
}

func (c *checker) start(s *Sync) {
	switch {
	case s.StartAt == "":
		return
	case s.Mode == job.ModeAll || s.Mode == job.ModeFull:
		c.fail("start-at", "is for incremental mode; a copy takes its own start", "add --mode incremental or leave it out")
	case s.Mode == job.ModeStructure:
		c.fail("start-at", "is for incremental mode; what makes the structure alone follows nothing",
			"leave it out, or choose --mode incremental")
	case strings.HasPrefix(s.StartAt, state.PrefixJob):
		name, _ := state.StartAtJob(s.StartAt)
		c.bad(name == "" || name == s.Job, "start-at", fmt.Sprintf("%q names no other job", s.StartAt),
			"write job: and the name of the finalized job that this one reverses")
	case s.StartAt == "checkpoint":
		c.bad(s.Restart, "start-at", "names the checkpoint that --restart forgets", "leave out one of the two")
	default:
		_, err := mongo.ParseOpTime(s.StartAt)
		c.bad(err != nil, "start-at", fmt.Sprintf("%q is not a position", s.StartAt),
			"write seconds:increment (1700000000:1), a time (2026-01-02T15:04:05Z), checkpoint or job:NAME")
	}
}

func (c *checker) until(s *Sync) {
	if s.Until == "never" || s.Until == job.UntilCaughtUp {
		return
	}
	if _, err := time.Parse(time.RFC3339, s.Until); err != nil {
		c.fail("until", fmt.Sprintf("%q is unknown", s.Until), "use never, caught-up or a time (2026-01-02T15:04:05Z)")
		return
	}
	c.bad(s.Mode == job.ModeFull, "until", "is a time, but a full copy ends by itself", "leave it out")
}

func (c *checker) structure(s *Sync) {
	if s.Mode != job.ModeStructure {
		return
	}
	given := func(setting string) bool { return c.origins[setting].Kind != FromDefault }
	c.bad(given("until") && s.Until != job.UntilCaughtUp, "until",
		fmt.Sprintf("%q cannot go with --mode structure, which ends by itself", s.Until),
		"leave it out, or choose --mode all to follow changes")
	c.bad(len(s.Rules.Filter) > 0, "filter", "chooses documents, and --mode structure copies none",
		"leave it out, or choose --mode all or full")
	c.bad(given("on-conflict") && s.OnConflict != job.ConflictStop, "on-conflict",
		"is about documents, and --mode structure copies none",
		"leave it out; documents that a unique index of the target refuses have to go before")
}

func (c *checker) tags(preference, tags string) {
	if _, unknown := mongo.ParseReadPreference(preference, ""); unknown != nil {
		return
	}
	if _, err := mongo.ParseReadPreference(preference, tags); err != nil {
		c.fail("read-tags", "cannot be used: "+err.Error(),
			"write for example dc:east,rack:1;dc:west, and add --read-preference secondary or another")
	}
}

// Validate implements Settings.
func (v *Verify) Validate(o Origins, _ []string) Problems {
	c := newChecker(&v.Common, o)
	c.clusters(v.Source, v.Target)
	v.SourceShards, v.TargetShards = c.shards(flagSourceShard, v.sourceShards), c.shards(flagTargetShard, v.targetShards)
	v.SourceVia, v.TargetVia = v.via, v.via
	c.bad(v.via == origin.ViaRouters && len(v.sourceShards)+len(v.targetShards) > 0, "via",
		"routers cannot go with addresses of shards", "leave out --source-shard and --target-shard, or --via")
	c.namespaces(v.Rules)
	c.notNegative("recheck-for", v.Recheck.For)
	v.Online = v.Recheck.For > 0
	c.parallel("workers", v.Workers)
	c.notBelowZero("max-differences", v.MaxDifferences)
	c.report(v.Report)
	c.notNegative(flagProgress, v.ProgressInterval)
	return c.problems
}

// Validate implements Settings.
func (s *Control) Validate(o Origins, _ []string) Problems {
	c := newChecker(&s.Common, o)
	if s.Address != "" {
		c.address("address", server.HostPort(s.Address))
	}
	if s.Server != "" {
		if err := server.CheckAddress(s.Server); err != nil {
			c.fail(flagServer, "cannot be used", mongo.HintOf(err))
		}
	}
	if kind := o[flagServer].Kind; kind == FromFlag || kind == FromFile {
		c.bad(o["address"].Kind == FromFlag, flagServer, "cannot go with --address", "give one of them")
		s.Address = s.Server
	}
	if o[flagTarget].Kind == FromFlag {
		c.bad(o[flagServer].Kind == FromFlag || o["address"].Kind == FromFlag, flagTarget,
			"cannot go with --address or --server", "give one of them")
		s.Server, s.Address = "", ""
	}
	if s.Target != "" {
		c.uri(flagTarget, s.Target)
	}
	c.job(s.Job)
	c.bad(s.Watch && s.Interval < 100*time.Millisecond, "interval", s.Interval.String()+" is too short",
		"use 100ms or more")
	c.bad(s.Cancel && (s.WhenCaughtUp || s.Wait), "cancel", "cannot go with --when-caught-up or --wait",
		"leave out one of the two")
	if s.command == CommandThrottle {
		s.Limits = c.limits(&s.rates, s.maxRateBytes, &s.loads)
	}
	return c.problems
}

func (c *checker) limits(rates *pace.Rates, bytes string, loads *pace.Loads) server.Limits {
	rates.Bytes = c.rates(rates.Docs, bytes)
	l := server.Limits{Docs: given(c.origins, flagRateDocs, &rates.Docs),
		Bytes: given(c.origins, flagRateBytes, &rates.Bytes), Source: given(c.origins, flagSourceLoad, &loads.Source),
		Target: given(c.origins, flagTargetLoad, &loads.Target)}
	c.bad(l == server.Limits{}, flagRateDocs,
		"is missing, and so are "+flagRateBytes+", "+flagSourceLoad+" and "+flagTargetLoad,
		"give what is to change; a limit of 0 lifts it")
	return l
}

// given is the value of a setting, nil where that is the default.
func given[T any](o Origins, setting string, value *T) *T {
	if _, ok := o[setting]; ok {
		return value
	}
	return nil
}
