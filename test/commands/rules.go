package commands

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Rules are those of a collection.
type Rules struct {
	// Skip are the operations that are left out, by their names.
	Skip []string
	// SoftDelete is the field that marks what the source deletes.
	SoftDelete string
	// Filter keeps the documents whose field s is "open".
	Filter bool
	// Fields renames field v to w, and makes text of field n.
	Fields  bool
	History bool
	// Merge is --on-existing merge, for the entire job.
	Merge bool
}

const (
	theFilter = `{"s": "open"}`
	theFields = `{"rename": {"v": "w"}, "convert": {"n": {"to": "string", "otherwise": "keep"}}}`
)

// Args are the flags for a pattern of namespaces.
func (r Rules) Args(pattern string) (out []string) {
	if len(r.Skip) > 0 {
		out = append(out, "--skip", pattern+"="+strings.Join(r.Skip, ","))
	}
	if r.SoftDelete != "" {
		out = append(out, "--soft-delete", pattern+"="+r.SoftDelete)
	}
	if r.Filter {
		out = append(out, "--filter", pattern+"="+theFilter)
	}
	if r.Fields {
		out = append(out, "--fields", pattern+"="+theFields)
	}
	if r.History {
		out = append(out, "--history", pattern)
	}
	if r.Merge {
		out = append(out, "--on-existing", "merge")
	}
	return out
}

// ReadArgs gives the rules of namespaces that flags of Args make. It is nil where they make none.
func ReadArgs(args []string) func(ns string) Rules {
	type flag struct{ name, pattern, value string }
	var flags []flag
	for i := 0; i+1 < len(args); i++ {
		switch args[i] {
		case "--skip", "--soft-delete", "--filter", "--fields", "--history":
			pattern, value, _ := strings.Cut(args[i+1], "=")
			flags = append(flags, flag{args[i], pattern, value})
		case "--on-existing":
			if args[i+1] == "merge" {
				flags = append(flags, flag{args[i], "*", "merge"})
			}
		}
	}
	if len(flags) == 0 {
		return nil
	}
	return func(ns string) (r Rules) {
		had := map[string]bool{}
		for _, f := range flags {
			if ok, _ := path.Match(f.pattern, ns); !ok && f.pattern != "*" || had[f.name] {
				continue
			}
			had[f.name] = true
			switch f.name {
			case "--skip":
				r.Skip = strings.Split(f.value, ",")
			case "--soft-delete":
				r.SoftDelete = f.value
			case "--filter":
				r.Filter = true
			case "--fields":
				r.Fields = true
			case "--history":
				r.History = true
			case "--on-existing":
				r.Merge = true
			}
		}
		return r
	}
}

func (r Rules) skips(op string) bool { return slices.Contains(r.Skip, op) }

// ofDocuments reports rules that capped collections cannot have.
func (r Rules) ofDocuments() bool {
	return r.SoftDelete != "" || r.Filter || r.Fields || r.History ||
		slices.ContainsFunc([]string{"insert", "update", "replace", "delete", "ttl"}, r.skips)
}

// same reports that what is on the target under the one may be there under the other.
func (r Rules) same(o Rules) bool { return fmt.Sprint(r) == fmt.Sprint(o) }

// keeps reports whether the filter keeps a document.
func (r Rules) keeps(d Doc) bool { return !r.Filter || d["s"] == "open" }
