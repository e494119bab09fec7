package operate

import "github.com/millrace/millrace/internal/service"

// Alerts are the present ones of the jobs that the caller sees, by job, and up to limit of
// those that are over, the newest first.
func (d *Desk) Alerts(c *service.Caller, limit int) (present, past []service.Alert) {
	present, past = []service.Alert{}, []service.Alert{}
	for _, a := range d.View.Alerts() {
		if a.Firing() && c.Sees(a.Job) {
			present = append(present, a)
		}
	}
	for _, a := range d.View.PastAlerts() {
		if len(past) == limit {
			break
		}
		if c.Sees(a.Job) {
			past = append(past, a)
		}
	}
	return veiled(c, present, service.Alert.Veil), veiled(c, past, service.Alert.Veil)
}
