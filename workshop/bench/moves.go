package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/workshop/lab/sharded"
)

const (
	movesEach = "chunks moved"
	// moveEvery is the least time from one move to the next. Without a pause the
	// servers copy all of their data several times over, which no balancer does.
	moveEvery = time.Second
)

// moves moves chunks of a collection from shard to shard until stop, one after
// the other.
type moves struct {
	cluster *sharded.Cluster
	quit    chan struct{}
	wg      sync.WaitGroup
	done    int
	err     error
}

// startMoves turns the balancer on and moves chunks by force besides.
func startMoves(ctx context.Context, of *side) (*moves, error) {
	if err := of.cluster.Balancer(ctx, true); err != nil {
		return nil, err
	}
	m := &moves{cluster: of.cluster, quit: make(chan struct{})}
	m.wg.Go(func() { m.err = m.run(context.WithoutCancel(ctx)) })
	return m, nil
}

// whileMoving does something while chunks move, and notes how many. The end of the
// last move does not count.
func whileMoving(ctx context.Context, of *side, m *meter, do func() error) error {
	moving, err := startMoves(ctx, of)
	if err != nil {
		return err
	}
	began := time.Now()
	err = do()
	took := time.Since(began).Seconds()
	if err := errors.Join(err, moving.stop(ctx)); err != nil {
		return err
	}
	m.value(movesEach, float64(moving.done))
	m.set(func(r *Round) { r.Seconds = took })
	return nil
}

// stop waits until the move under way has ended, and turns the balancer off.
func (m *moves) stop(ctx context.Context) error {
	close(m.quit)
	m.wg.Wait()
	return errors.Join(m.err, m.cluster.Balancer(context.WithoutCancel(ctx), false))
}

func (m *moves) run(ctx context.Context) error {
	random := rand.New(rand.NewPCG(3, 5))
	names := m.cluster.ShardNames()
	ns := dataDB + "." + collection(0)
	for {
		began := time.Now()
		chunks, err := m.cluster.Chunks(ctx, ns)
		if err != nil {
			return err
		}
		chunk, to := chunks[random.IntN(len(chunks))], names[random.IntN(len(names))]
		if chunk.Shard == to {
			continue
		}
		err = m.cluster.MoveChunk(ctx, ns, chunk.Min, to)
		if _, refused := errors.AsType[mongo.CommandError](err); err != nil && !refused { // by the balancer's own, say
			return err
		} else if err == nil {
			m.done++
		}
		select {
		case <-m.quit:
			return nil
		case <-time.After(time.Until(began.Add(moveEvery))):
		}
	}
}
