package console

import (
	"net/http"

	"github.com/millrace/millrace/internal/service/operate"
)

type reversePage struct {
	Of string
	*operate.Reversal
}

func (c *console) reverse(w http.ResponseWriter, r *http.Request, v *visit) error {
	of := r.PathValue("name")
	to, err := c.Desk.Reversal(v.who, of, operate.Reverse{})
	if err != nil {
		return err
	}
	return c.show(w, "reverse", c.reverseFrame(v, of, to))
}

func (c *console) reverseFrame(v *visit, of string, to *operate.Reversal) frame {
	f := c.page(v, "reverse", "", reversePage{of, to})
	f.Title = "Reverse " + of
	return f
}

func (c *console) makeReversed(w http.ResponseWriter, r *http.Request, v *visit) error {
	of := r.PathValue("name")
	ask := operate.Reverse{Name: r.PostForm.Get("as"), AcceptLoss: r.PostForm["accept"],
		DryRun: r.PostForm.Get("do") != "make"}
	to, _, err := c.Desk.Reverse(r.Context(), v.who, of, ask)
	switch {
	case err != nil:
		was, shown := c.Desk.Reversal(v.who, of, operate.Reverse{Name: ask.Name})
		if shown != nil {
			return err
		}
		return c.say(w, "reverse", c.reverseFrame(v, of, was), c.refusal(err))
	case ask.DryRun:
		return c.show(w, "reverse", c.reverseFrame(v, of, to))
	}
	return lead(w, r, "/jobs/"+to.Name+"?done=1")
}
