package ycsb

import (
	"bufio"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Properties are the settings of a run by name, as in a Java properties file.
type Properties map[string]string

//go:embed workloads
var workloads embed.FS

// ReadFile adds the properties of a file; later ones win. A path that does not
// exist and ends in the name of a core workload (workloada to workloadf) means
// the workload that is built in.
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
	if err := p.Read(f); err != nil {
		return fmt.Errorf("read workload file %s: %w", path, err)
	}
	return nil
}

// Read adds properties in the format of a Java properties file: name=value,
// name:value or name value; # and ! start a comment, a backslash at the end of
// a line joins it with the next, and before another character takes it as is.
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

// splitProperty cuts a line at the first separator that is not escaped. White
// space after the value goes too: Java keeps it, and then stumbles over it.
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
	v := r.text(name, "")
	if v == "" {
		return fallback
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		r.fail(name, "a whole number that is not negative")
		return fallback
	}
	return n
}

func (r *reader) float(name string, fallback float64) float64 {
	v := r.text(name, "")
	if v == "" {
		return fallback
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || !(f >= 0) {
		r.fail(name, "a number that is not negative")
		return fallback
	}
	return f
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
	for _, a := range allowed {
		if v == a {
			return v
		}
	}
	r.fail(name, "one of "+strings.Join(allowed, ", "))
	return fallback
}
