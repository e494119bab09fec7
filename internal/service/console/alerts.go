package console

import (
	"net/http"

	"github.com/millrace/millrace/internal/service"
)

// maxPast bounds the alerts that are over on their page.
const maxPast = 100

type alerts struct{ Present, Past []service.Alert }

// alerts shows what is wrong with the jobs that the visitor sees, and what was.
func (c *console) alerts(w http.ResponseWriter, r *http.Request, v *visit) error {
	present, past := c.Desk.Alerts(v.who, maxPast)
	f := c.page(v, "alerts", "Alerts", alerts{present, past})
	f.Live = r.URL.RequestURI()
	return c.show(w, "alerts", f)
}
