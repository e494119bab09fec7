package api

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/service"
)

// TestDeployedNamesExist: the alert rules and the board name metrics and labels that
// /metrics has, and the board is one that can be read.
func TestDeployedNamesExist(t *testing.T) {
	r := newRig(t)
	j := r.make("shop-a")
	st := &job.Status{Job: "shop-a", Phase: job.PhaseFollowing}
	st.Follow.LagSeconds, st.Follow.WindowSeconds = 1.5, 3600
	st.Follow.Holding = &progress.Holding{Shard: "s1", Seconds: 7}
	st.Shards, st.Routers = []progress.Shard{{Shard: "s1", LagSeconds: 2}},
		[]progress.Router{{Router: "r1:27017", Commands: 3}}
	r.run(j, st)
	if err := r.hub.Alerts.Set(t.Context(),
		&service.Alert{ID: "1", Kind: service.AlertLag, Job: "shop-a", FiredAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for len(r.view.Alerts()) == 0 {
		changed, _ := r.view.Changed()
		if len(r.view.Alerts()) == 0 {
			<-changed
		}
	}
	has := map[string]bool{}
	for line := range strings.Lines(string(r.ask("viewer", "GET", PathMetrics, "").body)) {
		if name := regexp.MustCompile(`^millrace_\w+`).FindString(line); name != "" {
			has[name] = true
			for _, label := range regexp.MustCompile(`(\w+)=`).FindAllStringSubmatch(line, -1) {
				has[name+" "+label[1]] = true
			}
		}
	}
	selector := regexp.MustCompile(`(millrace_\w+)(\{[^}]*\})?`)
	check := func(file, text string) (found int) {
		for _, m := range selector.FindAllStringSubmatch(text, -1) {
			if found++; !has[m[1]] {
				t.Errorf("%s names %s, which there is not", file, m[1])
			}
			for _, label := range regexp.MustCompile(`(\w+)(?:=|!=)~?"`).FindAllStringSubmatch(m[2], -1) {
				if !has[m[1]+" "+label[1]] {
					t.Errorf("%s asks %s for its label %s, which there is not", file, m[1], label[1])
				}
			}
		}
		return found
	}
	const dir = "../../../deploy/"
	raw, err := os.ReadFile(dir + "prometheus/millrace.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if n := check("millrace.rules.yml", string(raw)); n < 10 {
		t.Errorf("%d metrics in the rules", n)
	}
	if raw, err = os.ReadFile(dir + "grafana/millrace.json"); err != nil {
		t.Fatal(err)
	}
	var board struct {
		Title, UID string
		Templating struct {
			List []struct{ Name, Query string }
		}
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(raw, &board); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.ID == 0 || p.GridPos.X+p.GridPos.W > 24 || len(p.Targets) == 0 {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			if check("panel "+p.Title, target.Expr) == 0 {
				t.Errorf("panel %s asks for %q", p.Title, target.Expr)
			}
		}
	}
	if board.Title == "" || board.UID == "" || len(board.Panels) < 10 || len(board.Templating.List) != 2 ||
		check("the variable job", board.Templating.List[1].Query) != 1 {
		t.Errorf("the board: %s, %d panels, %+v", board.Title, len(board.Panels), board.Templating)
	}
}
