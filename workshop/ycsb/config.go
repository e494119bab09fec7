package ycsb

import (
	"bufio"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/internal/mongo"
)

// Phase is what a run does.
type Phase string

// The phases of YCSB.
const (
	Load Phase = "load" // inserts the records
	Run  Phase = "run"  // works on them
)

// DefaultURL is the server that is used when mongodb.url is not set.
const DefaultURL = "mongodb://localhost:27017/ycsb?w=1"

const (
	defaultDatabase = "ycsb"
	defaultTable    = "usertable"
)

type config struct {
	phase Phase

	url, database, table string
	read                 *readpref.ReadPref
	concern              *writeconcern.WriteConcern // nil leaves it to the server
	readLevel            string                     // read concern, "" leaves it to the server
	upsert               bool
	batch                int

	records, operations       int64
	insertStart, insertCount  int64
	threads                   int
	target                    float64       // operations a second of all threads, 0 is unlimited
	limit                     time.Duration // of the run, 0 is none
	retries                   int64
	retryAfter                time.Duration
	statusEvery               time.Duration
	keys                      keys
	fields                    []string
	fieldLength               numbers
	longestField              int64
	readAll, writeAll, verify bool
	requests                  string
	zipfRanks                 int64   // 0: as many as records
	theta                     float64 // of zipfian and latest requests
	hotData, hotOps           float64
	expPercentile, expFrac    float64
	scanLength                numbers
	weights                   [kinds]float64

	measure measureConfig
}

// measureConfig is what is measured and how it is written.
type measureConfig struct {
	kind         string // hdrhistogram, raw, histogram, timeseries
	op, intended bool
	percentiles  []float64
	rawFile      string
	exportFile   string
	exporter     string // text, json, jsonarray
	buckets      int    // of a histogram, each a millisecond
	granularity  time.Duration
}

// ErrProperties is the error of properties that cannot be used; nothing was done.
var ErrProperties = errors.New("properties cannot be used")

// parse reads the properties of a phase. The error lists all that is wrong.
func parse(p Properties, phase Phase) (*config, error) {
	r := &reader{p: p}
	c := &config{phase: phase}
	if class := r.text("workload", ""); class != "" && class[strings.LastIndex(class, ".")+1:] != "CoreWorkload" {
		r.fail("workload", "CoreWorkload, which is the only one there is")
	}
	c.server(r)
	c.amount(r)
	c.record(r)
	c.mix(r)
	c.distribution(r)
	c.measures(r)
	if err := errors.Join(r.problems...); err != nil {
		return nil, mongo.WithHint(fmt.Errorf("%w: %s", ErrProperties, strings.ReplaceAll(err.Error(), "\n", "; ")),
			"properties are described in docs/reference/benchmarks.md")
	}
	return c, nil
}

// server reads where to and how.
func (c *config) server(r *reader) {
	c.url = r.text("mongodb.url", DefaultURL)
	if !strings.Contains(c.url, "://") {
		c.url = "mongodb://" + c.url // host:port was allowed once
	}
	o, err := mongo.ParseURI(c.url)
	if err != nil {
		r.problems = append(r.problems, fmt.Errorf("property mongodb.url: %w", err))
		return
	}
	c.database = mongo.Database(c.url)
	if c.database == "" || c.database == "admin" {
		c.database = cmp.Or(r.text("mongodb.database", ""), defaultDatabase)
	}
	c.table = r.text("table", defaultTable)
	c.upsert = r.flag("mongodb.upsert", false)
	c.batch = int(max(r.count("mongodb.batchsize", r.count("batchsize", 1)), 1))

	c.concern, c.read = o.WriteConcern, o.ReadPreference
	if o.ReadConcern != nil {
		c.readLevel = o.ReadConcern.Level
	}
	c.oldServerProperties(r)
}

// oldServerProperties are what was said by properties before it was said in the connection string, which wins.
func (c *config) oldServerProperties(r *reader) {
	if name := r.text("mongodb.writeConcern", ""); name != "" && (c.concern == nil || c.url == DefaultURL) {
		c.concern = map[string]*writeconcern.WriteConcern{
			"errors_ignored": writeconcern.Unacknowledged(), "unacknowledged": writeconcern.Unacknowledged(),
			"acknowledged": writeconcern.W1(), "safe": writeconcern.W1(), "majority": writeconcern.Majority(),
			"journaled": {W: 1, Journal: new(true)}, "replica_acknowledged": {W: 2},
		}[strings.ToLower(name)]
		if c.concern == nil {
			r.fail("mongodb.writeConcern",
				"errors_ignored, unacknowledged, acknowledged, journaled, replica_acknowledged or majority")
		}
	}
	if name := r.text("mongodb.readPreference", ""); name != "" && c.read == nil {
		mode, err := readpref.ModeFromString(strings.ReplaceAll(name, "_", ""))
		if err == nil {
			c.read, err = readpref.New(mode)
		}
		if err != nil {
			r.fail("mongodb.readPreference", "primary, primary_preferred, secondary, secondary_preferred or nearest")
		}
	}
}

// amount reads how much is done, how fast and by how many.
func (c *config) amount(r *reader) {
	c.records = r.count("recordcount", 1000)
	c.operations = r.count("operationcount", 1000)
	c.insertStart = r.count("insertstart", 0)
	c.insertCount = r.count("insertcount", max(c.records-c.insertStart, 0))
	if c.insertStart+c.insertCount > c.records {
		r.problems = append(r.problems, fmt.Errorf("recordcount=%d is less than insertstart and insertcount together, %d",
			c.records, c.insertStart+c.insertCount))
	}
	if c.insertCount == 0 {
		r.problems = append(r.problems, errors.New("there are no records: recordcount is not more than insertstart"))
	}
	c.limit = time.Duration(r.count("maxexecutiontime", 0)) * time.Second
	if c.phase == Load {
		c.operations = c.insertCount
	} else if c.operations == 0 {
		c.operations = math.MaxInt64
		if c.limit == 0 {
			r.fail("operationcount", "a number above 0, or maxexecutiontime with it")
		}
	}
	c.threads = int(r.count("threadcount", 1))
	if c.threads < 1 || c.threads > maxThreads {
		r.fail("threadcount", "a number from 1 to "+strconv.Itoa(maxThreads))
	}
	c.target = r.float("target", 0)
	c.retries = r.count("core_workload_insertion_retry_limit", 0)
	c.retryAfter = time.Duration(r.float("core_workload_insertion_retry_interval", 3) * float64(time.Second))
	c.statusEvery = time.Duration(max(r.count("status.interval", 10), 1)) * time.Second
}

const maxThreads = 10_000

func (c *config) record(r *reader) {
	c.keys = keys{ordered: r.oneOf("insertorder", "hashed", "hashed", "ordered") == "ordered",
		pad: int(min(r.count("zeropadding", 1), 100))}
	n, prefix := r.count("fieldcount", 10), r.text("fieldnameprefix", "field")
	if n < 1 || n > 10_000 {
		r.fail("fieldcount", "a number from 1 to 10000")
		n = 1
	}
	for i := range n {
		c.fields = append(c.fields, prefix+strconv.FormatInt(i, 10))
	}
	length, least := r.count("fieldlength", 100), r.count("minfieldlength", 1)
	c.longestField = length
	switch r.oneOf("fieldlengthdistribution", "constant", "constant", "uniform", "zipfian", "histogram") {
	case "constant":
		c.fieldLength = constant(length)
	case "uniform":
		c.fieldLength = uniform{min(least, length), length}
	case "zipfian":
		c.fieldLength = offset{newZipfian(max(length-least+1, 1), newHarmonic(zipfTheta)), min(least, length)}
	case "histogram":
		h, err := readHistogram(r.text("fieldlengthhistogram", "hist.txt"))
		if err != nil {
			r.problems = append(r.problems, err)
			return
		}
		c.fieldLength, c.longestField = h, max(0, slices.Max(h.lengths))
	}
	const most = 16 << 20 // of a document
	if c.longestField > most/n {
		r.problems = append(r.problems, fmt.Errorf("%d fields of %d bytes make a document larger than a server takes, 16 MB",
			n, c.longestField))
	}
	c.readAll, c.writeAll = r.flag("readallfields", true), r.flag("writeallfields", false)
	if c.verify = r.flag("dataintegrity", false); c.verify {
		if _, fixed := c.fieldLength.(constant); !fixed {
			r.fail("dataintegrity", "fieldlengthdistribution=constant with it")
		}
	}
}

// offset adds a number to another generator's.
type offset struct {
	*zipfian
	low int64
}

func (o offset) next(r *rand.Rand) int64 { return o.low + o.zipfian.next(r) }

func (c *config) mix(r *reader) {
	c.weights = [kinds]float64{
		opRead: r.float("readproportion", 0.95), opUpdate: r.float("updateproportion", 0.05),
		opInsert: r.float("insertproportion", 0),
		opScan:   r.float("scanproportion", 0), opModify: r.float("readmodifywriteproportion", 0),
	}
	var sum float64
	for _, w := range c.weights {
		sum += w
	}
	if sum == 0 {
		r.problems = append(r.problems, errors.New("all proportions are 0: there is nothing to do"))
	}
	low, high := r.count("minscanlength", 1), r.count("maxscanlength", 1000)
	low = min(max(low, 1), max(high, 1))
	high = max(high, low)
	if r.oneOf("scanlengthdistribution", "uniform", "uniform", "zipfian") == "zipfian" {
		c.scanLength = offset{newZipfian(high-low+1, newHarmonic(zipfTheta)), low}
	} else {
		c.scanLength = uniform{low, high}
	}
}

func (c *config) distribution(r *reader) {
	c.requests = r.oneOf("requestdistribution", "uniform", "uniform", "zipfian", "latest", "hotspot", "sequential",
		"exponential")
	c.hotData, c.hotOps = r.float("hotspotdatafraction", 0.2), r.float("hotspotopnfraction", 0.8)
	c.expPercentile, c.expFrac = r.float("exponential.percentile", 95), r.float("exponential.frac", 0.8571428571)
	if c.hotData > 1 || c.hotOps > 1 {
		r.fail("hotspotdatafraction", "fractions from 0 to 1, here and in hotspotopnfraction")
	}
	if c.expPercentile <= 0 || c.expPercentile >= 100 || c.expFrac <= 0 {
		r.fail("exponential.percentile", "a number between 0 and 100, and exponential.frac above 0")
	}
	if c.theta = r.float("millrace.zipfian.constant", zipfTheta); c.theta <= 0 || c.theta >= 1 {
		r.fail("millrace.zipfian.constant", "a number between 0 and 1")
	}
	c.zipfRanks = scrambledRanks
	if r.oneOf("millrace.zipfian.over", "ycsb", "ycsb", "records") == "records" {
		c.zipfRanks = 0
	}
}

func (c *config) measures(r *reader) {
	m := &c.measure
	m.kind = r.oneOf("measurementtype", "hdrhistogram", "hdrhistogram", "raw", "histogram", "timeseries",
		"hdrhistogram+histogram", "hdrhistogram+raw")
	fallback := "op"
	if c.target > 0 {
		fallback = "both"
	}
	interval := r.oneOf("measurement.interval", fallback, "op", "intended", "both")
	m.op, m.intended = interval != "intended", interval != "op" && c.target > 0
	if !m.intended {
		m.op = true
	}
	for _, s := range strings.Split(r.text("hdrhistogram.percentiles", "95,99"), ",") {
		f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || f < 0 || f > 100 {
			r.fail("hdrhistogram.percentiles", "numbers from 0 to 100 with commas")
			break
		}
		m.percentiles = append(m.percentiles, f)
	}
	m.rawFile, m.exportFile = r.text("measurement.raw.output_file", ""), r.text("exportfile", "")
	m.buckets = int(min(max(r.count("histogram.buckets", 1000), 1), 100_000))
	m.granularity = time.Duration(max(r.count("timeseries.granularity", 1000), 1)) * time.Millisecond
	exporter := r.text("exporter", "")
	m.exporter = map[string]string{"": "text", "TextMeasurementsExporter": "text", "JSONMeasurementsExporter": "json",
		"JSONArrayMeasurementsExporter": "jsonarray"}[exporter[strings.LastIndex(exporter, ".")+1:]]
	if m.exporter == "" {
		r.fail("exporter", "TextMeasurementsExporter, JSONMeasurementsExporter or JSONArrayMeasurementsExporter")
	}
}

// Properties are the settings of a run by name, as in a Java properties file.
type Properties map[string]string

//go:embed workloads
var workloads embed.FS

// ReadFile adds a file's properties; later ones win. Missing workloada to workloadf are built in.
func (p Properties) ReadFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		if builtIn, err := workloads.Open("workloads/" + filepath.Base(path)); err == nil {
			defer builtIn.Close()
			return p.Read(builtIn)
		}
	}
	if err != nil {
		return fmt.Errorf("read workload file: %w", err)
	}
	defer f.Close()
	return mongo.Wrap(p.Read(f), "read workload file %s", path)
}

// Read reads a Java properties file: name=value, name:value or name value, comments (# !) and backslashes.
func (p Properties) Read(r io.Reader) error {
	s := bufio.NewScanner(r)
	var joined string
	for s.Scan() {
		line := strings.TrimLeft(s.Text(), " \t\f")
		if joined == "" && (line == "" || line[0] == '#' || line[0] == '!') {
			continue
		}
		line = joined + line
		if joined = ""; continues(line) {
			joined = line[:len(line)-1]
			continue
		}
		name, value := splitProperty(line)
		p[name] = value
	}
	if joined != "" {
		name, value := splitProperty(joined)
		p[name] = value
	}
	return s.Err()
}

// continues says that a line ends in an odd number of backslashes.
func continues(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

// splitProperty cuts a line at the first unescaped separator, and trims the value, which Java does not.
func splitProperty(line string) (name, value string) {
	end := len(line)
	for i := 0; i < len(line); i++ {
		if line[i] == '\\' {
			i++
		} else if strings.IndexByte("=: \t\f", line[i]) >= 0 {
			end = i
			break
		}
	}
	value = strings.TrimLeft(line[end:], " \t\f")
	if value != "" && (value[0] == '=' || value[0] == ':') {
		value = value[1:]
	}
	return unescape(line[:end]), unescape(strings.TrimSpace(value))
}

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			if i+5 <= len(s) {
				if n, err := strconv.ParseUint(s[i+1:i+5], 16, 16); err == nil {
					b.WriteRune(rune(n))
					i += 4
					continue
				}
			}
			b.WriteByte('u')
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// Set adds a property given as name=value.
func (p Properties) Set(assignment string) error {
	name, value, ok := strings.Cut(assignment, "=")
	if !ok || name == "" {
		return fmt.Errorf("property %q is not of the form name=value", assignment)
	}
	p[name] = value
	return nil
}

// With is a copy with more properties, given as names and values in turn.
func (p Properties) With(pairs ...string) Properties {
	out := maps.Clone(p)
	if out == nil {
		out = Properties{}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

// reader reads typed properties and collects what is wrong with them.
type reader struct {
	p        Properties
	problems []error
}

func (r *reader) fail(name, want string) {
	r.problems = append(r.problems, fmt.Errorf("property %s=%s: want %s", name, r.p[name], want))
}

func (r *reader) text(name, fallback string) string {
	if v, ok := r.p[name]; ok {
		return strings.TrimSpace(v)
	}
	return fallback
}

// count is a whole number that is not negative.
func (r *reader) count(name string, fallback int64) int64 {
	parse := func(v string) (int64, error) { return strconv.ParseInt(v, 10, 64) }
	return readNumber(r, name, fallback, "a whole number", parse)
}

func (r *reader) float(name string, fallback float64) float64 {
	parse := func(v string) (float64, error) { return strconv.ParseFloat(v, 64) }
	return readNumber(r, name, fallback, "a number", parse)
}

func readNumber[T int64 | float64](r *reader, name string, fallback T, what string, parse func(string) (T, error)) T {
	v := r.text(name, "")
	if v == "" {
		return fallback
	}
	n, err := parse(v)
	if err != nil || !(n >= 0) {
		r.fail(name, what+" that is not negative")
		return fallback
	}
	return n
}

// flag reads a boolean as Java does: "true" in any case, anything else is false.
func (r *reader) flag(name string, fallback bool) bool {
	v := r.text(name, "")
	if v == "" {
		return fallback
	}
	return strings.EqualFold(v, "true")
}

func (r *reader) oneOf(name, fallback string, allowed ...string) string {
	v := strings.ToLower(r.text(name, fallback))
	if slices.Contains(allowed, v) {
		return v
	}
	r.fail(name, "one of "+strings.Join(allowed, ", "))
	return fallback
}
