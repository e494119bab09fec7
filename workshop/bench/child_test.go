package bench

import (
	"strings"
	"testing"
)

// The settings of whoever runs the bench are not those of what is measured.
func TestMeasuredProgramsGetNoSecrets(t *testing.T) {
	t.Setenv("MILLRACE_TOKEN", "0123456789abcdef")
	c, err := startChild(t.Context(), program{name: "sh", args: []string{"-c", "env | grep -E '^(MILLRACE_|PATH=)'"},
		env: []string{"MILLRACE_SOURCE=mongodb://a"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.wait(); err != nil {
		t.Fatal(err)
	}
	env := c.out.String()
	if strings.Contains(env, "MILLRACE_TOKEN") || !strings.Contains(env, "MILLRACE_SOURCE=mongodb://a") ||
		!strings.Contains(env, "PATH=") {
		t.Errorf("MILLRACE_TOKEN: %v, its own: %v, PATH: %v; want false, true, true",
			strings.Contains(env, "MILLRACE_TOKEN"), strings.Contains(env, "MILLRACE_SOURCE=mongodb://a"),
			strings.Contains(env, "PATH="))
	}
}
