package console

import (
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

type repairPage struct {
	Job, Of   string
	All       bool
	Chosen    []service.DocumentDifference
	Writes    int
	Deletions int // documents that the source did not have
	Names     []string
}

// nameForRepair returns what identifies a document in a form, "" if nothing does. It has no foreign text.
func nameForRepair(d service.DocumentDifference) string {
	if d.Key == "" {
		return ""
	}
	return d.Key + "." + base64.RawURLEncoding.EncodeToString([]byte(d.NS))
}

func (c *console) repair(w http.ResponseWriter, r *http.Request, v *visit) error {
	name, of := r.PathValue("name"), r.PathValue("id")
	what := operate.RepairWhat{All: r.PostForm.Get("which") == "all"}
	if !what.All {
		for _, value := range r.PostForm["document"] {
			key, ns, _ := strings.Cut(value, ".")
			raw, _ := base64.RawURLEncoding.DecodeString(ns)
			what.Documents = append(what.Documents, operate.RepairDocument{NS: string(raw), Key: key})
		}
	}
	if r.PostForm.Get("sure") == "" && (what.All || len(what.Documents) > 0) {
		return c.askRepair(w, r, v, what)
	}
	made, _, err := c.Desk.Repair(r.Context(), v.who, name, r.PostForm.Get("repair"), what.In(of))
	if err != nil {
		return c.showVerification(w, r, v, c.refusal(err))
	}
	return lead(w, r, verificationPath(name, made.Request.ID))
}

func (c *console) askRepair(w http.ResponseWriter, r *http.Request, v *visit, what operate.RepairWhat) error {
	name, of := r.PathValue("name"), r.PathValue("id")
	_, found, err := c.Desk.Verification(r.Context(), v.who, name, of)
	if err != nil {
		return err
	}
	if !v.who.Role.May(service.Operator) || found == nil {
		return c.showVerification(w, r, v,
			said{http.StatusForbidden, "only operators repair, and only what a verification has found", ""})
	}
	p := repairPage{Job: name, Of: of, All: what.All}
	for _, d := range found.Differences {
		if !what.Wants(&d) {
			continue
		}
		if d.Kind == "extra" {
			p.Deletions++
		} else {
			p.Writes++
		}
		p.Chosen, p.Names = append(p.Chosen, d), append(p.Names, nameForRepair(d))
	}
	return c.show(w, "repair", c.page(v, "job", "Repair documents of "+name, p))
}
