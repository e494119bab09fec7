package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
)

// TestJoined: each name of a failed result is there once, and the failure's value counts.
func TestJoined(t *testing.T) {
	r := Results{Value: struct {
		Name  string `json:"name"`
		Error string `json:"error"`
		Hint  string `json:"hint"`
		More  []int  `json:"more"`
	}{"a<b", "", "its own", []int{1}}}
	for _, c := range []struct {
		err  error
		hint string
	}{{mongo.WithHint(errors.New("why"), "how"), `"hint": "how"`}, {errors.New("why"), `"hint": "its own"`}} {
		var out bytes.Buffer
		if err := r.write(&out, c.err); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		for _, want := range []string{`"error": "why"`, c.hint, `"name": "a<b"`, `"more": [`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s is missing in %s", want, text)
			}
		}
		if strings.Count(text, `"error"`) != 1 || strings.Count(text, `"hint"`) != 1 {
			t.Errorf("a name is there twice: %s", text)
		}
	}
	for value, want := range map[any]string{"text": `"result": "text"`, struct{}{}: `"error": "why"`} {
		var out bytes.Buffer
		err := (&Results{Value: value}).write(&out, errors.New("why"))
		if err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v: %v %s", value, err, out.String())
		}
	}
}
