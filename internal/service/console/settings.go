package console

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

func yamlText(s string) string {
	words := []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
	switch {
	case regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./:-]*[A-Za-z0-9_/-]$`).MatchString(s) &&
		!slices.Contains(words, strings.ToLower(s)):
		return s
	case !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }):
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsGraphic(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func (f *wizard) settings() string {
	var b strings.Builder
	list := func(key string, values []string) { b.WriteString(yamlList(key, values)) }
	for _, side := range [][2]string{{"source", f.Source}, {"target", f.Target}} {
		if side[1] != "" {
			fmt.Fprintf(&b, "%s: %s\n", side[0], yamlText(side[1]))
		}
	}
	if f.Choice.Some {
		list("include", f.Choice.Include)
	}
	list("exclude", f.Choice.Exclude)
	list("rename", f.Choice.Rename)
	for s := range f.fields() {
		if s.Values == nil {
			list(s.Key, lined(s.Value))
		} else if s.Value != s.Values[0] {
			fmt.Fprintf(&b, "%s: %s\n", s.Key, s.Value)
		}
	}
	if more := strings.TrimSpace(f.More); more != "" {
		b.WriteString(more + "\n")
	}
	return b.String()
}

func yamlList(key string, values []string) string {
	if len(values) == 0 {
		return ""
	}
	text := key + ":\n"
	for _, v := range values {
		text += "  - " + yamlText(v) + "\n"
	}
	return text
}

func (f *wizard) fill(text string) bool {
	given := slices.DeleteFunc(config.ReadSettings(text), func(s config.Given) bool {
		field := f.field(s.Name)
		return field != nil && field.Values != nil && slices.Equal(s.Values, field.Values[:1])
	})
	for _, s := range given {
		if !f.put(s.Name, s.Values) {
			if len(s.Values) == 1 && !strings.Contains(s.Values[0], ",") {
				f.More += s.Name + ": " + yamlText(s.Values[0]) + "\n"
			} else {
				f.More += yamlList(s.Name, s.Values)
			}
		}
	}
	mine := config.ReadSettings(f.settings())
	for _, list := range [][]config.Given{given, mine} {
		slices.SortStableFunc(list, func(a, b config.Given) int { return strings.Compare(a.Name, b.Name) })
	}
	return slices.EqualFunc(given, mine, func(a, b config.Given) bool {
		return a.Name == b.Name && slices.Equal(a.Values, b.Values)
	})
}

func (f *wizard) put(name string, values []string) bool {
	one := strings.Join(values, "\n")
	if s := f.field(name); s != nil {
		return s.set(one)
	}
	switch name {
	case "source":
		f.Source = one
	case "target":
		f.Target = one
	case "include":
		f.Choice.Some, f.Choice.Include = true, values
	case "exclude":
		f.Choice.Exclude = values
	case "rename":
		f.Choice.Rename = values
	default:
		return false
	}
	return true
}

func lined(text string) (out []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// onExisting is the setting by which a job may drop collections of its target.
const onExisting = "on-existing"

// drops are collections of the target that a job would drop. Unknown says why they are not known, "" if they are.
type drops struct {
	Names   []string
	Total   int
	Unknown string
}

func dropsOf(d service.Definition, plan *service.DraftPlan) *drops {
	s, problems := config.CheckDefinition(d.Name, d.Settings)
	if len(problems) > 0 || s.OnExisting != job.ExistingDrop || plan != nil && plan.ExistingTotal == 0 {
		return nil
	}
	if plan == nil {
		return &drops{}
	}
	return &drops{Names: plan.Existing, Total: plan.ExistingTotal}
}

// start makes or edits a job. One that drops collections needs a confirmation: without it start returns them, with
// an error.
func (c *console) start(r *http.Request, v *visit, d service.Definition, edit bool) (*drops, error) {
	if dropsOf(d, nil) != nil && r.PostForm.Get("sure") != "drop" {
		plan, err := c.Desk.PrecheckDraft(r.Context(), v.who, d)
		if e, ok := errors.AsType[*operate.Error](err); ok && e.Code != operate.Conflict {
			return nil, err
		}
		if lost := dropsOf(d, plan); lost != nil {
			if err != nil {
				lost.Unknown = c.refusal(err).text
			}
			return lost, said{http.StatusConflict, "the job is not started: it drops collections of its target",
				"confirm this, or choose another value for " + onExisting}
		}
	}
	var err error
	if edit {
		_, err = c.Desk.Edit(r.Context(), v.who, d)
	} else {
		_, _, err = c.Desk.Create(r.Context(), v.who, d)
	}
	return nil, err
}
