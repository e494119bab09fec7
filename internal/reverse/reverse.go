// Package reverse inverts the definition of a job, so that the old cluster can follow the new one
// after a cut-over. It is pure: it asks no server and knows no job. What cannot be inverted it
// returns as losses; who may accept them, and how a job begins, is not its business.
package reverse

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/transform"
)

// Definition is what is inverted of a job.
type Definition struct {
	Source, Target string // connection strings, or references to them
	Rules          transform.Config
	// Names are the collections that the job had when it was finalized.
	Names []Name
	// Returns are the rules of the job that this one reverses; nil for none.
	Returns *transform.Config
}

// Name is a collection on both sides.
type Name struct{ Source, Target string }

// The names of losses, as --accept-loss takes them. TargetChanges are writes to the old cluster
// since the cut-over; rules do not tell of them.
const (
	Filter        = "filter"
	Skip          = "skip"
	SoftDelete    = "soft-delete"
	TargetChanges = "target-changes"
)

// Losses are the names of all losses that can be accepted.
func Losses() []string {
	return append([]string{Filter, Skip, SoftDelete, TargetChanges}, sections()...)
}

// Loss is what following back loses or invents because of a rule.
type Loss struct {
	Name string // one of Losses, or "rename" of a note
	Rule string // as a flag has it
	What string
	// Note says that only documents with one of Fields are concerned, which the rule did not expect.
	Note   bool
	Fields []string
}

func (l Loss) String() string { return fmt.Sprintf("%s: %s", l.Rule, l.What) }

// Invert exchanges the sides and inverts the rules. A definition that Invert has made it takes
// back, without losses. An error names what has no inverse at all.
func Invert(d Definition) (Definition, []Loss, error) {
	back := Definition{Source: d.Target, Target: d.Source, Returns: &d.Rules}
	for _, n := range d.Names {
		back.Names = append(back.Names, Name{n.Target, n.Source})
	}
	if d.Returns != nil {
		back.Rules = *d.Returns
		return back, nil, nil
	}
	if h := d.Rules.History; len(h) > 0 {
		return back, nil, fmt.Errorf("--history %s: the target has versions in place of documents, from which nothing "+
			"leads back", h[0])
	}
	v, err := newInverter(d.Rules)
	if err == nil {
		back.Rules, err = v.names(d.Names)
	}
	if err != nil {
		return back, nil, err
	}
	losses := losses(d.Rules)
	mapped, more, err := v.fields(d.Rules.Fields)
	back.Rules.Fields, back.Rules.Secret = mapped, d.Rules.Secret
	return back, append(losses, more...), err
}

func losses(r transform.Config) (out []Loss) {
	add := func(name string, rules []string, what string) {
		for _, text := range rules {
			out = append(out, Loss{Name: name, Rule: "--" + name + " " + text, What: what})
		}
	}
	add(Filter, r.Filter, "documents that it left out stay on the old cluster as they are. They go with their "+
		"collection. A new document with the _id of one is a conflict")
	add(Skip, r.Skip,
		"what it left out stays different on both clusters. A change of such a document is a conflict")
	add(SoftDelete, r.SoftDelete,
		"deleted documents that it kept are on the new cluster alone. A change of one is a conflict")
	return out
}

// JobName is that of the job that reverses another one: shop-back of shop, shop-back2 of shop-back.
func JobName(of string) string {
	const back = "-back"
	if i := strings.LastIndex(of, back); i >= 0 {
		name, n := of[:i+len(back)], of[i+len(back):]
		if k, err := strconv.Atoi(cmp.Or(n, "1")); err == nil {
			return name + strconv.Itoa(k+1)
		}
	}
	return of + back
}

// Refusing are the losses that nobody has accepted by name.
func Refusing(all []Loss, accepted []string) []Loss {
	return slices.DeleteFunc(slices.Clone(all), func(l Loss) bool { return l.Note || slices.Contains(accepted, l.Name) })
}

// Holds checks rules against the inverse of others: they have to name each collection as the
// inverse does, and map documents in the same way. Which other names they choose is free.
func Holds(rules transform.Config, inverse Definition) error {
	own, err := compiled(rules)
	if err != nil {
		return err
	}
	var wrong []string
	for _, n := range inverse.Names {
		if !own.Match(n.Source) || own.Target(n.Source) != n.Target {
			wrong = append(wrong, n.Source+" to "+n.Target)
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("the rules do not lead back: they have to bring %s", some(wrong))
	}
	if a, b := documents(rules), documents(inverse.Rules); a != b {
		return fmt.Errorf("the rules for documents are %q, and those that lead back are %q", a, b)
	}
	return nil
}

// documents is the canonical form of all rules but those of names.
func documents(r transform.Config) string {
	r.Include, r.Exclude, r.Rename = nil, nil, nil
	s, err := compiled(r)
	if err != nil {
		return err.Error()
	}
	return s.String()
}

// compiled reads rules without their secrets, which inverting needs not.
func compiled(r transform.Config) (*transform.Set, error) {
	r.Secret = func(string) (string, error) { return "unknown", nil }
	return transform.New(r)
}

func some(all []string) string {
	const most = 3
	text := strings.Join(all[:min(most, len(all))], ", ")
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// errAmbiguous is why names cannot be inverted.
var errAmbiguous = errors.New("the names on the target do not tell the names on the source")
