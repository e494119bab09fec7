package worker

import (
	"context"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/verify"
)

// verifyLender is a verification of another worker that has parts for others, nil where
// there is none.
func (w *Worker) verifyLender(rests map[string]rest) *service.Verification {
	for _, v := range w.View.OpenVerifications() {
		if v.State() != service.VerifyRunning || v.Report.Lendable == 0 || v.Lease.Worker == w.Name ||
			rests[v.Lease.Run].waits() {
			continue
		}
		if j := w.View.Job(v.Wish.Job); j != nil && j.Definition.Fits(w.Labels) {
			return &v
		}
	}
	return nil
}

// readFor reads parts of a verification until nothing is left to read, or this worker has
// something better to do.
func (w *Worker) readFor(ctx context.Context, v *service.Verification) error {
	log := w.Log.With("job", v.Wish.Job, "verification", v.Wish.ID, "of", v.Lease.Worker)
	ctx, stop := w.watched(ctx, func() bool {
		now := w.View.Verification(v.Wish.Job, v.Wish.ID)
		return now == nil || now.Lease == nil || now.Lease.Run != v.Lease.Run
	})
	defer stop()
	s, err := w.settings(ctx, v.Wish.Job, v.Wish.UID)
	if err != nil {
		log.Warn("parts of the verification cannot be read here", "error", err)
		return err
	}
	log.Info("reading parts of another worker's verification")
	spec := verify.Spec{Source: s.Source, Target: s.Target, AllowShard: s.AllowShard, Rules: s.Rules,
		Options: verify.Options{MaxBufferedBytes: checkMemory, Log: log}}
	err = verify.Borrow(ctx, spec, w.Name, w.Version, func(ctx context.Context, request []byte) ([]byte, error) {
		return w.Hub.Borrow(ctx, v.Lease.Run, request)
	})
	if err != nil {
		log.Info("reads no more of the other worker's verification", "why", mongo.Brief(err))
		return err
	}
	log.Info("has read parts of the other worker's verification")
	return nil
}
