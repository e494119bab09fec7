package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/suggest"
)

// Kind says where a setting came from.
type Kind int

// Where a setting came from; the later ones win.
const (
	FromDefault Kind = iota
	FromFile
	FromEnvironment
	FromFlag
)

// Origin is the place that a setting came from.
type Origin struct {
	Kind Kind
	Name string // flag, variable or file
	Line int    // in the file
	// Lines are those of the items of a list in the file.
	Lines []int
}

func (o Origin) item(i int) Origin {
	if i < len(o.Lines) {
		o.Line = o.Lines[i]
	}
	return o
}

// String returns the origin for operators, "" for a default.
func (o Origin) String() string {
	switch o.Kind {
	case FromFlag:
		return "flag --" + o.Name
	case FromEnvironment:
		return "environment " + o.Name
	case FromFile:
		return fmt.Sprintf("file %s line %d", o.Name, o.Line)
	}
	return ""
}

// Origins tells by flag name where each setting came from.
type Origins map[string]Origin

// Inputs are the environment and the file system from which settings are read.
type Inputs struct {
	LookupEnv func(string) (string, bool)
	ReadFile  func(string) ([]byte, error)
}

// Load completes the parsed flags of a command from the environment and from the file of --config: a flag wins over the
// environment, the environment over the file. An empty variable counts as not set. Load returns all problems.
func Load(fs *pflag.FlagSet, command string, in Inputs) (Origins, Problems) {
	l := loader{fs: fs, origins: Origins{}}
	fs.Visit(func(f *pflag.Flag) { l.origins[f.Name] = Origin{Kind: FromFlag, Name: f.Name} })
	fs.VisitAll(func(f *pflag.Flag) {
		names := variables(f)
		value, _ := in.LookupEnv(names[0])
		if value == "" || f.Name == "help" || f.Hidden || l.excluded(f) {
			return
		}
		l.set(f.Name, Origin{Kind: FromEnvironment, Name: names[0]}, value)
		f.Changed = true
	})
	if fs.Lookup(flagConfig) != nil {
		l.file(command, in.ReadFile)
	}
	return l.origins, l.problems
}

// excluded reports whether a flag was given that cannot go with f: then the variable of f does not count.
func (l *loader) excluded(f *pflag.Flag) bool {
	const exclusive = "cobra_annotation_mutually_exclusive" // cobra's: groups of names with spaces between them
	return slices.ContainsFunc(f.Annotations[exclusive], func(group string) bool {
		return slices.ContainsFunc(strings.Fields(group), func(name string) bool {
			return name != f.Name && l.origins[name].Kind == FromFlag
		})
	})
}

type loader struct {
	fs       *pflag.FlagSet
	origins  Origins
	problems Problems
	job      string // of a definition
}

func (l *loader) file(command string, read func(string) ([]byte, error)) {
	path := l.fs.Lookup(flagConfig).Value.String()
	if path == "" {
		return
	}
	raw, err := read(path)
	if err != nil {
		l.problems = append(l.problems, Problem{Setting: flagConfig, Where: l.origins[flagConfig].String(),
			What: "cannot be read: " + err.Error(), How: "give the path of a YAML file"})
		return
	}
	entries, problems := parseFile(path, raw, command)
	l.problems = append(l.problems, problems...)
	for _, e := range entries {
		l.set(e.key, Origin{Kind: FromFile, Name: path, Line: e.line, Lines: e.lines}, e.values...)
	}
}

// set gives a flag its value, unless a place that wins has set it. Several values are the items of
// a list; a single value is parsed as on the command line.
func (l *loader) set(name string, o Origin, values ...string) {
	f := l.fs.Lookup(name)
	if _, set := l.origins[name]; set {
		return
	}
	var err error
	list, isList := f.Value.(pflag.SliceValue)
	switch {
	case isList && (len(values) != 1 || o.Kind == FromFile):
		err = list.Replace(values)
	case len(values) == 1:
		err = f.Value.Set(values[0])
	default:
		err = errors.New("is one value, not a list")
	}
	if err == nil {
		l.origins[name] = o
		return
	}
	what := "cannot be used"
	if len(values) != 1 {
		what = err.Error()
	} else if !mongo.HasPassword(values[0]) {
		what = fmt.Sprintf("%q cannot be used", values[0])
	}
	l.problems = append(l.problems,
		Problem{Setting: name, Where: o.String(), What: what, How: "want " + typeWords(f.Value.Type())})
}

func typeWords(flagType string) string {
	return cmp.Or(map[string]string{
		"bool":        "true or false",
		"int":         "a whole number",
		"int64":       "a whole number",
		"intSlice":    "a list of whole numbers",
		"float64":     "a number",
		"duration":    "a duration such as 30s, 10m or 2h",
		"stringSlice": "a list; quote an item that contains a comma",
		"stringArray": "one item, or a list in the config file",
	}[flagType], "one value")
}

// Warnings returns secrets that other users of this machine can see, of validated settings.
func Warnings(fs *pflag.FlagSet, o Origins) []Problem {
	var out []Problem
	fs.VisitAll(func(f *pflag.Flag) {
		if !hasSecret(f) {
			return
		}
		origin, names := o[f.Name], variables(f)
		p := Problem{Setting: f.Name, Where: origin.String()}
		switch origin.Kind {
		case FromFlag:
			p.What = "is a secret that other users of this machine can see in the list of processes"
			p.How = "set " + names[len(names)-1]
			if fs.Lookup(flagConfig) != nil {
				p.How += " or use a config file"
			}
			out = append(out, p)
		case FromFile:
			if open(origin.Name) {
				p.What, p.How = "is a secret in a file that other users can read", "chmod 600 "+origin.Name
				out = append(out, p)
			}
		}
	})
	for _, name := range secretFiles() {
		f := fs.Lookup(name)
		if f != nil && open(f.Value.String()) {
			out = append(out, Problem{Setting: name, Where: o[name].String(),
				What: "names a file that other users can read, and it holds a secret", How: "chmod 600 " + f.Value.String()})
		}
	}
	return out
}

// open reports a file that other users can read or write.
func open(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm()&0o077 != 0
}

func hasSecret(f *pflag.Flag) bool {
	values := []string{f.Value.String()}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		values = list.GetSlice()
	}
	return f.Name == flagToken && values[0] != "" || slices.ContainsFunc(values, mongo.HasPassword)
}

const prefix = "MILLRACE_"

// EnvName is the environment variable of a flag: MILLRACE_ON_EXISTING of on-existing.
func EnvName(flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

const variable = "variable"

// Variables gives a flag other variables than EnvName: the first is read, the last is recommended for secrets.
func Variables(fs *pflag.FlagSet, flag string, names ...string) {
	_ = fs.SetAnnotation(flag, variable, names)
}

func variables(f *pflag.Flag) []string {
	if names := f.Annotations[variable]; len(names) > 0 {
		return names
	}
	return []string{EnvName(f.Name)}
}

// otherVariables returns variables without a flag: of the lab, of tests, secrets of jobs, and those
// that Kubernetes sets for a service named millrace. One that ends in _ is a prefix.
func otherVariables() []string {
	return []string{"MONGOD_", "LAB_", "FAILPOINTS", "TEST_", "TRIAL", "TRIAL_", "SOAK", "SEED_", "SECRET_", "SERVICE_",
		"PORT_"}
}

// Unknown returns the variables of an environment (NAME=value) that have the prefix of millrace and
// no flag. It suggests flags of command first. Names in foreign belong to other programs.
func Unknown(environ []string, command *pflag.FlagSet, all []*pflag.Flag, foreign []string) (out []Problem) {
	var own, known []string // without the prefix, in which all are alike
	add := func(to *[]string, f *pflag.Flag) {
		for _, name := range variables(f) {
			*to = append(*to, strings.TrimPrefix(name, prefix))
		}
	}
	command.VisitAll(func(f *pflag.Flag) { add(&own, f) })
	for _, f := range all {
		add(&known, f)
	}
	for _, one := range environ {
		name, value, _ := strings.Cut(one, "=")
		short, ours := strings.CutPrefix(name, prefix)
		if !ours || value == "" || slices.Contains(known, short) || slices.Contains(foreign, name) ||
			slices.ContainsFunc(otherVariables(),
				func(o string) bool { return o == short || strings.HasSuffix(o, "_") && strings.HasPrefix(short, o) }) {
			continue
		}
		p := Problem{Setting: name, Where: "environment", What: "means nothing to any command",
			How: "see the command's --help for its flags"}
		if best := cmp.Or(suggest.Name(short, own), suggest.Name(short, known)); best != "" {
			p.How = "did you mean " + prefix + best + "?"
		}
		out = append(out, p)
	}
	return out
}

// Problem is a setting that cannot be used. It never has the value of a secret.
type Problem struct {
	Setting string `json:"setting"` // flag name without dashes, or "" for the entire file
	Where   string `json:"where"`   // "flag --mode", "environment MILLRACE_MODE", "file sync.yaml line 3"
	What    string `json:"what"`    // what is wrong
	How     string `json:"how"`     // what the operator can do
}

// String is one line for the operator.
func (p Problem) String() string {
	s := p.Where + " " + p.What // of the entire file
	if p.Setting != "" {
		s = p.Setting + " " + p.What
		if p.Where != "" {
			s += " (" + p.Where + ")"
		}
	}
	if p.How != "" {
		s += "; " + p.How
	}
	return s
}

// Problems has all problems of a command's settings. It is an error of usage.
type Problems []Problem

func (p Problems) Error() string { return strings.Join(p.Lines(), "\n") }

// Lines returns a line for each problem, below a heading if there are several.
func (p Problems) Lines() []string {
	if len(p) == 1 {
		return []string{p[0].String()}
	}
	lines := []string{fmt.Sprintf("%d settings cannot be used", len(p))}
	for _, one := range p {
		lines = append(lines, "  "+one.String())
	}
	return lines
}
