package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/verify"
)

const repairedBytes = 96 << 10

var (
	errElsewhere = errors.New("the job does not run here any more")
	errFinalized = errors.New("the job is finalized: its target may be in use, and is not written to any more")
)

// mayRepair reports whether this worker runs the job, or can report why nobody can.
func (w *Worker) mayRepair(j *service.Job) bool {
	return notRepairing(j) != nil || w.runs(j.Definition.Name) != nil
}

// notRepairing returns why no worker can repair until an operator acts.
func notRepairing(j *service.Job) error {
	switch j.State() {
	case service.Finished:
		return errFinalized
	case service.Failed:
		const then = "resume the job, then ask for the repair again"
		return mongo.WithHint(fmt.Errorf("the job has failed, and a failed job repairs nothing: %s", j.Report.Error),
			strings.TrimPrefix(j.Report.Hint+"; "+then, "; "))
	}
	return nil
}

func (w *Worker) runs(name string) *unit {
	w.mu.Lock()
	u := w.units[name]
	w.mu.Unlock()
	if u == nil || u.running() == nil {
		return nil
	}
	return u
}

type repair struct {
	*check
	docs []service.RepairDocument
	list []*job.Repair
	now  []job.Repair
}

func (c *check) newRepair() (*repair, error) {
	docs, err := c.worker.Hub.Verifications.Repair(c.ctx, c.request.Job, c.request.ID)
	if errors.Is(err, hub.ErrNotFound) {
		err = mongo.WithHint(errors.New("the list of documents to repair is lost"), "request the repair again")
	}
	if err != nil {
		return nil, err
	}
	r := &repair{check: c, docs: docs}
	for _, d := range docs {
		id, err := service.DocumentID(d.Key)
		if err != nil {
			return nil, err
		}
		uuid, err := service.CollectionUUID(d.UUID)
		if err != nil {
			return nil, err
		}
		r.list = append(r.list, &job.Repair{Target: d.TargetNS, UUID: uuid, ID: id})
	}
	return r, nil
}

func (r *repair) documents() map[string]verify.Documents {
	out := map[string]verify.Documents{}
	for i, d := range r.docs {
		of := out[d.NS]
		of.UUID, of.IDs = r.list[i].UUID, append(of.IDs, bsonraw.RawValue(r.list[i].ID))
		out[d.NS] = of
	}
	return out
}

// run repeats refused documents as long as others make room.
func (r *repair) run() error {
	u := r.worker.runs(r.request.Job)
	if u == nil {
		if j := r.worker.View.Job(r.request.Job); j != nil {
			if err := notRepairing(j); err != nil {
				return err
			}
		}
		return r.leave()
	}
	u.record.event(slog.LevelWarn, fmt.Sprintf("%d documents of the target are to be repaired, as %s has asked "+
		"(verification %s)", len(r.docs), r.request.CreatedBy, r.request.ID))
	for before := len(r.list) + 1; ; {
		err := u.repair(r)
		if errors.Is(err, job.ErrEnded) {
			return r.leave()
		}
		if err != nil {
			return err
		}
		refused := r.refused()
		if len(refused) == 0 || len(refused) >= before || len(refused) == len(r.list) {
			break
		}
		before = len(refused)
		for _, i := range refused {
			was := r.list[i]
			r.list[i] = &job.Repair{Target: was.Target, UUID: was.UUID, ID: was.ID}
		}
	}
	p := progressOf(r.present())
	u.record.event(slog.LevelWarn, fmt.Sprintf("documents of the target were repaired: %d written, %d deleted, %d were "+
		"the same, %d refused", p.Written, p.Deleted, p.Same, p.Refused))
	return nil
}

func (u *unit) repair(r *repair) error {
	j := u.running()
	if j == nil {
		return job.ErrEnded
	}
	return j.Repair(r.ctx, r.list, func(now []job.Repair) {
		p := progressOf(now)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now, r.report.Repair = now, &p
	})
}

// leave hands the repair over to the job's next worker.
func (r *repair) leave() error {
	_ = r.sendReport() // which logs its error
	r.cancel(errElsewhere)
	return errElsewhere
}

func (r *repair) present() []job.Repair {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *repair) refused() (list []int) {
	for i, one := range r.present() {
		if one.Outcome == job.RepairRefused {
			list = append(list, i)
		}
	}
	return list
}

func progressOf(now []job.Repair) (p service.RepairProgress) {
	for _, one := range now {
		switch one.Outcome {
		case job.RepairWritten:
			p.Written++
		case job.RepairDeleted:
			p.Deleted++
		case job.RepairSame:
			p.Same++
		case job.RepairRefused:
			p.Refused++
		}
	}
	return p
}

func (r *repair) found(f *service.Findings) {
	var refused, all []service.RepairedDocument // refused ones first
	for i, one := range r.present() {
		d := r.docs[i]
		done := service.RepairedDocument{NS: d.NS, TargetNS: d.TargetNS, ID: d.ID, Kind: d.Kind,
			Outcome: string(one.Outcome), Why: service.Short(one.Why, detailBytes)}
		if one.Outcome == job.RepairRefused {
			refused = append(refused, done)
		} else {
			all = append(all, done)
		}
	}
	all = append(refused, all...)
	if kept, leftOut := fitting(repairedBytes, all); len(all) > 0 {
		f.Repaired, f.RepairedLeftOut = kept, f.RepairedLeftOut+leftOut
	}
}
