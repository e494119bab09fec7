package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
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

// Origin is where one setting came from.
type Origin struct {
	Kind Kind
	Name string // flag, variable or file
	Line int    // in the file
}

// String is the origin in an operator's words, "" for a default.
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

// Inputs are the places besides flags that settings are read from. The
// program passes its own; tests pass theirs.
type Inputs struct {
	LookupEnv func(string) (string, bool)
	ReadFile  func(string) ([]byte, error)
}

// EnvName is the environment variable of a flag: MILLRACE_ON_EXISTING of
// on-existing.
func EnvName(flag string) string {
	return "MILLRACE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Load completes the parsed flags of a command from the environment and from
// the file that --config names: a flag wins over the environment, this over
// the file. An empty variable counts as not set. The error is a Problems with
// everything that is wrong.
func Load(fs *pflag.FlagSet, command string, in Inputs) (Origins, error) {
	l := loader{fs: fs, command: command, in: in, origins: Origins{}}
	l.flags()
	l.environment()
	l.file()
	return l.origins, l.problems.orNil()
}

type loader struct {
	fs       *pflag.FlagSet
	command  string
	in       Inputs
	origins  Origins
	problems Problems
}

func (l *loader) flags() {
	l.fs.Visit(func(f *pflag.Flag) { l.origins[f.Name] = Origin{Kind: FromFlag, Name: f.Name} })
}

func (l *loader) environment() {
	known := flagSets()[l.command]
	l.fs.VisitAll(func(f *pflag.Flag) {
		if _, set := l.origins[f.Name]; set || known == nil || known.Lookup(f.Name) == nil {
			return
		}
		name := EnvName(f.Name)
		value, ok := l.in.LookupEnv(name)
		if !ok || value == "" {
			return
		}
		l.set(f, Origin{Kind: FromEnvironment, Name: name}, value)
	})
}

func (l *loader) file() {
	f := l.fs.Lookup(flagConfig)
	if f == nil || f.Value.String() == "" {
		return
	}
	path := f.Value.String()
	raw, err := l.in.ReadFile(path)
	if err != nil {
		l.problems = append(l.problems, Problem{Setting: flagConfig, Where: l.origins[flagConfig].String(),
			What: "cannot be read: " + err.Error(), How: "give the path of a YAML file"})
		return
	}
	entries, problems := parseFile(path, raw, l.command)
	l.problems = append(l.problems, problems...)
	for _, e := range entries {
		if _, set := l.origins[e.key]; set {
			continue
		}
		l.set(l.fs.Lookup(e.key), Origin{Kind: FromFile, Name: path, Line: e.line}, e.values...)
	}
}

// set gives a flag its value without marking it as given on the command line.
// Several values are items of a list, each taken as it is; a single one is
// read as the flag would read it.
func (l *loader) set(f *pflag.Flag, o Origin, values ...string) {
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
	if err != nil {
		l.problems = append(l.problems, Problem{Setting: f.Name, Where: o.String(), What: wrongValue(f, values, err),
			How: "want " + typeWords(f.Value.Type())})
		return
	}
	l.origins[f.Name] = o
}

func wrongValue(f *pflag.Flag, values []string, err error) string {
	switch {
	case len(values) != 1:
		return err.Error()
	case secret(f.Name):
		return "cannot be used"
	}
	return fmt.Sprintf("%q cannot be used", values[0])
}

func typeWords(flagType string) string {
	switch flagType {
	case "bool":
		return "true or false"
	case "int":
		return "a whole number"
	case "duration":
		return "a duration such as 30s, 10m or 2h"
	case "stringSlice":
		return "a list; quote an item that contains a comma"
	}
	return "one value"
}
