package cli

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
)

// ManPages renders one man page for each visible command, by file name. The date is
// what a page says of its own.
func ManPages(root *cobra.Command, date string) map[string][]byte {
	pages := map[string][]byte{}
	eachCommand(root, func(c *cobra.Command) { pages[manName(c)+".1"] = manPage(c, date) })
	return pages
}

func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func manPage(c *cobra.Command, date string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s 1 \"%s\" \"millrace %s\"\n.nh\n.ad l\n", roff(strings.ToUpper(manName(c))), date, roff(c.Root().Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(c)), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	manLines(&b, "DESCRIPTION", c.Long)
	manLines(&b, "EXAMPLES", c.Example)
	sections := config.Sections(c.Flags())
	for i, s := range sections {
		if i == 0 {
			b.WriteString(".SH OPTIONS\n")
		}
		if len(sections) > 1 {
			fmt.Fprintf(&b, ".SS %s\n", roff(s.Title))
		}
		s.Flags.VisitAll(func(f *pflag.Flag) { manFlag(&b, f) })
	}
	var also []string
	if c.HasParent() {
		also = append(also, manName(c.Parent()))
	}
	for _, sub := range documented(c) {
		also = append(also, manName(sub))
	}
	b.WriteString(".SH SEE ALSO\n")
	for _, name := range also {
		fmt.Fprintf(&b, ".BR %s (1)\n", roff(name))
	}
	return b.Bytes()
}

func manFlag(b *bytes.Buffer, f *pflag.Flag) {
	kind, usage := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if text := strings.Trim(defaultText(f), "`"); text != "" {
		usage += " (default " + text + ")"
	}
	fmt.Fprintf(b, ".TP\n\\fB%s\\fR \\fI%s\\fR\n%s\n", roff(name), roff(kind), roff(usage))
}

// manLines shows text as it stands, line by line.
func manLines(b *bytes.Buffer, title, text string) {
	if text != "" {
		fmt.Fprintf(b, ".SH %s\n.nf\n%s\n.fi\n", title, roff(strings.Trim(text, "\n")))
	}
}

// roff keeps text from being taken for commands: an escape, a line's first dot or
// quote, and hyphens, which else become others than those that are typed.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
