// Command pictures takes the pictures of the documentation from two runs of the demo: the console's pages with
// Chromium from one of the service, and the text of a terminal from the other. Usage: pictures DIR BIN, where BIN
// has the programs demo and millrace.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/millrace/millrace/internal/pace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pictures DIR BIN")
		os.Exit(2)
	}
	if err := errors.Join(console(ctx, os.Args[1], os.Args[2]), terminal(ctx, os.Args[1], os.Args[2])); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// started matches the demo's line on where the console is, and the file of its token.
var started = regexp.MustCompile(`console: (\S+?)/? \(log in with the token in (.*)\)`)

// console takes the pictures of the console while the service follows.
func console(ctx context.Context, dir, bin string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	demo := exec.CommandContext(
		ctx,
		filepath.Join(bin, "demo"),
		"--millrace",
		filepath.Join(bin, "millrace"),
		"--service",
		"--source",
		"rs:1",
		"--docs",
		"400000",
		"--follow",
		"200s",
	)
	demo.Cancel = func() error { return demo.Process.Signal(syscall.SIGTERM) }
	demo.Stderr = os.Stderr
	out, err := demo.StdoutPipe()
	if err == nil {
		err = demo.Start()
	}
	if err != nil {
		return err
	}
	var at []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Println(lines.Text())
		if m := started.FindStringSubmatch(lines.Text()); m != nil {
			at = m
		}
		if strings.HasPrefix(lines.Text(), "  following ") {
			if err = photograph(ctx, dir, at[1], at[2]); err != nil {
				cancel()
			}
		}
	}
	return errors.Join(err, demo.Wait())
}

// terminal draws what a terminal shows of a sync: a moment of its copy, the end, and what verify finds.
func terminal(ctx context.Context, dir, bin string) error {
	command := fmt.Sprintf(
		"stty columns 104 rows 16; exec '%[1]s/demo' --millrace '%[1]s/millrace' --source rs:1 --docs 2000000",
		strings.TrimSuffix(bin, "/"),
	)
	cmd := exec.CommandContext(ctx, "script", "--quiet", "--flush", "--return", "--command", command, "/dev/null")
	cmd.Env = append(os.Environ(), "TERM=xterm")
	said, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, said)
	}
	screen := []string{"$ millrace sync"}
	copying, following := frame(said, ": copying", "copy"), frame(said, ": following", "changes")
	if copying == nil || following == nil {
		return fmt.Errorf("the terminal shows no copy, or nothing that follows it:\n%q", said)
	}
	screen = append(append(screen, copying...), "", "… the copy is done, the source is written to:", "")
	screen = append(append(screen, following...), "", "$ millrace finalize && millrace verify")
	for line := range strings.Lines(string(said)) {
		if line = strings.Trim(line, "│ \r\n"); strings.HasPrefix(line, "compared") ||
			strings.HasPrefix(line, "differences") {
			screen = append(screen, "  "+strings.ReplaceAll(line, " │", ""))
		}
	}
	return os.WriteFile(filepath.Join(dir, "millrace-sync.svg"), draw(screen), 0o644)
}

// escapes are what the live view writes to move the cursor.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[a-zA-Z]|\r`)

// frame returns the lines of one past the middle of the pictures that have a title and a line of that name.
func frame(said []byte, title, line string) []string {
	var found [][]string
	for _, f := range strings.Split(string(said), "\x1b[?2026h")[1:] {
		f, _, _ = strings.Cut(f, "\x1b[?2026l")
		if i := strings.LastIndex(f, "demo: "); i >= 0 && strings.Contains(f[i:], title) &&
			strings.Contains(f[i:], "\n  "+line+" ") {
			found = append(found, strings.Split(strings.TrimSpace(escapes.ReplaceAllString(f[i:], "")), "\n"))
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found[len(found)*2/3]
}

// photograph takes the pictures once the curves have something to show.
func photograph(ctx context.Context, dir, server, tokenFile string) error {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return err
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("headless", "new"))
	ctx, end := chromedp.NewExecAllocator(ctx, options...)
	defer end()
	ctx, end = chromedp.NewContext(ctx)
	defer end()
	light := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: "light"}}}
	login := strings.TrimSpace(string(token)) + kb.Enter
	if err := chromedp.Do(ctx, chromedp.Navigate(server+"/jobs"), chromedp.WaitVisible("#token"),
		chromedp.SendKeys("#token", login), chromedp.WaitVisible("tr[data-job]")); err != nil {
		return fmt.Errorf("log in to the console: %w", err)
	}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, light); err != nil {
		return err
	}
	if err := pace.Pause(ctx, 2*time.Minute); err != nil {
		return err
	}
	for _, p := range []struct {
		name, path string
		height     int64
	}{{"console-jobs.png", "/jobs", 600}, {"console-job.png", "/jobs/demo", 1500}} {
		err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, p.height), chromedp.Navigate(server+p.path))
		if err == nil {
			err = pace.Pause(ctx, 3*time.Second)
		}
		if err == nil {
			var image []byte
			if image, err = chromedp.Run(ctx, chromedp.CaptureScreenshot()); err == nil {
				err = os.WriteFile(filepath.Join(dir, p.name), image, 0o644)
			}
		}
		if err != nil {
			return fmt.Errorf("picture %s: %w", p.name, err)
		}
	}
	return nil
}

var bars = regexp.MustCompile(`█+|░+`)

// draw draws lines of text as a terminal would show them.
func draw(lines []string) []byte {
	const column, row = 8, 18
	width := 0
	for _, l := range lines {
		width = max(width, len([]rune(l)))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d">`+
		`<rect width="%[1]d" height="%[2]d" rx="8" fill="#16181d"/><g font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" `+
		`font-size="13.3" fill="#d6d9e0" xml:space="preserve">`+"\n", width*column+40, len(lines)*row+30)
	for i, l := range lines {
		if l == "" {
			continue
		}
		fill := ""
		if strings.HasPrefix(l, "$") {
			fill = ` fill="#8bd17c"`
		}
		text := bars.ReplaceAllStringFunc(html.EscapeString(l), func(bar string) string {
			if strings.HasPrefix(bar, "█") {
				return `<tspan fill="#5aa9e6">` + bar + "</tspan>"
			}
			return `<tspan fill="#3a3f4b">` + bar + "</tspan>"
		})
		fmt.Fprintf(&b, `<text x="20" y="%d"%s textLength="%d" lengthAdjust="spacing">%s</text>`+"\n", 30+i*row, fill,
			len([]rune(l))*column, text)
	}
	b.WriteString("</g></svg>\n")
	return []byte(b.String())
}
