package config

import (
	_ "embed"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Vars has the variables of flags, by name.
type Vars map[string]any

// flagTexts has the flags of the commands with settings.
//
//go:embed flags.txt
var flagTexts string

// Bind registers the flags of a set, which texts describe. "# name" begins a set, "@name" includes another one, "= title"
// puts the flags after it below a title. "--name -n default" is a flag, or "--name a|b*|c" one that takes some words,
// of which b is the default. Its usage follows, indented: a line for the help, then details for the reference.
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
