package config

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/query"
)

type schema = map[string]any

func refTo(name string) schema { return schema{"$ref": "#/$defs/" + name} }

func either(forms ...any) schema { return schema{"anyOf": forms} }

// Schema is a JSON Schema of the configuration file, for editors. It is made from the settings of all commands, and
// from what reads their rules. What it finds valid a command may still refuse, such as a name that does not exist.
// Numbers and truth values have to stand there without quotes.
func Schema() ([]byte, error) {
	all, defs := schema{}, schema{}
	maps.Copy(defs, query.Schema())
	maps.Copy(defs, fields.Schema())
	defs["rule"] = schema{"type": "string", "pattern": "="}
	defs["pattern"] = schema{"type": "string", "pattern": `^[^.]+(\.[\s\S]+)?$`}
	sections := map[string]schema{}
	sets := settingFlags()
	// Settings that several commands have are described as sync has them, or else the first.
	commands := slices.Sorted(maps.Keys(sets))
	commands = slices.Insert(slices.DeleteFunc(commands, func(c string) bool { return c == CommandSync }), 0, CommandSync)
	for _, command := range commands {
		own, err := settingSchemas(sets[command])
		if err != nil {
			return nil, err
		}
		sections[command] = schema{"type": []string{"object", "null"},
			"description": "settings of millrace " + strings.ReplaceAll(command, "-", " ") + " alone",
			"properties":  own, "additionalProperties": false}
		for name, s := range own {
			all[name] = merged(all[name], s.(schema))
		}
	}
	for command, section := range sections {
		if setting, ok := all[command]; ok { // verify is a setting of sync, too
			all[command] = schema{"if": schema{"type": "object"}, "then": section, "else": setting,
				"description": section["description"]}
			continue
		}
		all[command] = section
	}
	for _, section := range sections {
		own := section["properties"].(schema)
		for name, s := range own {
			if reflect.DeepEqual(all[name], s) {
				own[name] = schema{"$ref": "#/properties/" + name}
			}
		}
	}
	return json.MarshalIndent(schema{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "millrace configuration",
		"description": "Settings of millrace by the names of its flags. Those of one command may stand in a section of " +
			"its name.",
		"type": "object", "properties": all, "additionalProperties": false, "$defs": defs,
	}, "", " ")
}

// merged is a setting of several commands: the values that one of them takes.
func merged(have any, s schema) schema {
	first, ok := have.(schema)
	if !ok || reflect.DeepEqual(first, s) {
		return s
	}
	notes := []string{"description", "default"}
	without := func(s schema) schema {
		s = maps.Clone(s)
		for _, note := range notes {
			delete(s, note)
		}
		return s
	}
	out := maps.Clone(first)
	if !reflect.DeepEqual(first["default"], s["default"]) {
		delete(out, "default")
	}
	if !reflect.DeepEqual(without(first), without(s)) {
		out = either(without(first), without(s))
		out["description"] = first["description"]
	}
	return out
}

func settingSchemas(fs *pflag.FlagSet) (out schema, err error) {
	out = schema{}
	fs.VisitAll(func(f *pflag.Flag) {
		s := valueSchema(f)
		switch {
		case f.Name == flagConfig || f.Hidden:
			return
		case s == nil:
			err = fmt.Errorf("no form in the file is known of the flag --%s, a %s", f.Name, f.Value.Type())
			return
		}
		_, s["description"] = Describe(f)
		if d := defaultOf(f); d != nil {
			s["default"] = d
		}
		out[f.Name] = s
	})
	return out, err
}

// durations are those that time.ParseDuration reads.
const durations = `^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`

// valueSchema describes the values that a flag takes from the file, nil where that is not known.
func valueSchema(f *pflag.Flag) schema {
	list := func(item schema) []any { return []any{item, schema{"type": "array", "items": item}} }
	switch f.Value.Type() {
	case "bool":
		return schema{"type": "boolean"}
	case "int", "int64":
		return schema{"type": "integer"}
	case "float64":
		return schema{"type": "number"}
	case "duration":
		return either(schema{"type": "string", "pattern": durations}, schema{"const": 0})
	case "stringSlice", "stringArray":
		form, ruled := ruleForms()[f.Name]
		item := refTo("rule") // before and after an =
		if f.Value.Type() == "stringSlice" && !ruled {
			item = refTo("pattern")
		}
		forms := list(item)
		if ruled {
			keys := form.pattern
			if keys == nil {
				keys = refTo("pattern")
			}
			forms = append(forms, schema{"type": "object", "propertyNames": keys, "additionalProperties": form.schema})
		}
		return either(forms...)
	case "string":
		if words := Choices(f); words != nil {
			return schema{"enum": words}
		}
		return schema{"type": []string{"string", "number", "boolean"}}
	}
	return nil
}

func defaultOf(f *pflag.Flag) any {
	switch f.Value.Type() {
	case "bool":
		return f.DefValue == "true"
	case "int", "int64":
		n, _ := strconv.ParseInt(f.DefValue, 10, 64)
		return n
	case "float64":
		n, _ := strconv.ParseFloat(f.DefValue, 64)
		return n
	}
	if f.DefValue == "" || f.DefValue == "[]" {
		return nil
	}
	return f.DefValue
}

const titled = "section"

// Section is flags below a title.
type Section struct {
	Title string
	Flags *pflag.FlagSet
}

// Sections are the flags of fs that are shown, by their titles. What has none is
// added to the section before it; if there is none, it is one of flags.
func Sections(fs *pflag.FlagSet) []Section {
	var all []Section
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		title := f.Annotations[titled]
		switch last := len(all) - 1; {
		case last < 0 && title == nil:
			all = append(all, Section{Title: "Flags"})
		case title != nil && (last < 0 || title[0] != all[last].Title):
			all = append(all, Section{Title: title[0]})
		}
		last := &all[len(all)-1]
		if last.Flags == nil {
			last.Flags = pflag.NewFlagSet(last.Title, pflag.ContinueOnError)
			last.Flags.SortFlags = false
		}
		last.Flags.AddFlag(f)
	})
	return all
}

// Vars has the variables of flags, by name.
type Vars map[string]any

// flagTexts has the flags of the commands with settings.
//
//go:embed flags.txt
var flagTexts string

// Bind registers the flags of a set, which texts describe. "# name" begins a set, "@name" includes another one,
// "= title" puts the flags after it below a title. "--name -n default" is a flag, or "--name a|b*|c" one that takes
// some words, of which b is the default. Its usage follows, indented: a line for the help, then details for the
// reference.
func Bind(fs *pflag.FlagSet, texts, set string, vars ...Vars) {
	b := binder{fs: fs, texts: "\n" + texts, vars: vars}
	b.set(set)
}

type binder struct {
	fs    *pflag.FlagSet
	texts string
	vars  []Vars
	title string
}

func (b *binder) set(name string) {
	_, text, _ := strings.Cut(b.texts, "\n# "+name+"\n")
	text, _, _ = strings.Cut(text, "\n# ")
	const indent = "\n    "
	for part := range strings.SplitSeq(strings.ReplaceAll(text, indent, "\t"), "\n") {
		switch head, usage, _ := strings.Cut(part, "\t"); {
		case strings.HasPrefix(head, "@"):
			b.set(head[1:])
		case strings.HasPrefix(head, "= "):
			b.title = head[2:]
		case strings.HasPrefix(head, "--"):
			words := strings.Fields(head[2:])
			b.flag(words[0], strings.ReplaceAll(strings.Replace(usage, "\t", "\n", 1), "\t", " "), words[1:])
		}
	}
}

func (b *binder) flag(name, usage string, words []string) {
	var short, value string
	for _, word := range words {
		if letter, is := strings.CutPrefix(word, "-"); is {
			short = letter
		} else if list, is := strings.CutPrefix(word, "offers:"); is {
			defer func() { _ = b.fs.SetAnnotation(name, offers, strings.Split(list, ",")) }()
		} else {
			value = word
		}
	}
	f := b.register(name, short, usage, value == "list")
	if words := strings.Split(value, "|"); len(words) > 1 {
		i := slices.IndexFunc(words, func(word string) bool { return strings.HasSuffix(word, "*") })
		value = strings.TrimSuffix(words[i], "*")
		words[i] = value
		Restrict(b.fs, name, words...)
	}
	if _, several := f.Value.(pflag.SliceValue); !several && value != "" {
		if err := f.Value.Set(value); err != nil {
			panic("flag --" + name + ": " + err.Error()) // the text is one of ours
		}
		f.DefValue = f.Value.String()
	}
	if b.title != "" {
		b.fs.SortFlags = false
		_ = b.fs.SetAnnotation(name, titled, []string{b.title})
	}
}

// register registers a flag that is not set. With comma, a value of a list may have several items.
func (b *binder) register(name, short, usage string, comma bool) *pflag.Flag {
	var to any
	for _, vars := range b.vars {
		if v, is := vars[name]; is {
			to = v
		}
	}
	switch p := to.(type) {
	case *string:
		b.fs.StringVarP(p, name, short, "", usage)
	case *bool:
		b.fs.BoolVar(p, name, false, usage)
	case *int:
		b.fs.IntVar(p, name, 0, usage)
	case *int64:
		b.fs.Int64Var(p, name, 0, usage)
	case *float64:
		b.fs.Float64Var(p, name, 0, usage)
	case *time.Duration:
		b.fs.DurationVar(p, name, 0, usage)
	case *[]string:
		if comma {
			b.fs.StringSliceVar(p, name, nil, usage)
		} else {
			b.fs.StringArrayVar(p, name, nil, usage)
		}
	default:
		panic("flag --" + name + " has no variable")
	}
	return b.fs.Lookup(name)
}
