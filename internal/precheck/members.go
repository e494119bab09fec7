package precheck

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// selectTime is how long a member for the read preference is looked for.
const selectTime = 10 * time.Second

// members looks whether the source has a member to read for the read preference. A job
// that has begun waits for one, unless the set has none by its configuration.
func (p *planner) members(ctx context.Context) error {
	type side struct {
		name string
		*mongo.Cluster
	}
	sides := []side{{"the source", p.Source}}
	if p.Shards != nil {
		all := p.Shards.Cluster()
		sides = nil
		for _, s := range all.Shards {
			sides = append(sides, side{"shard " + s.Name, s.Cluster})
		}
		if config := all.Config(); config != nil {
			sides = append(sides, side{"the config servers' set", config})
		}
	}
	for _, c := range sides {
		if !c.Chooses() {
			continue
		}
		selecting, cancel := context.WithTimeout(ctx, selectTime)
		conn, err := c.Checkout(selecting, c.Reader())
		cancel()
		if err == nil {
			conn.Release()
			continue
		}
		if _, none := wire.UnsuitableServers(err); !none || ctx.Err() != nil {
			return mongo.Wrap(err, "read %s", c.name)
		}
		level, failed := p.unsuited(ctx, c.Cluster)
		if failed != nil {
			return failed
		}
		p.add(level, "read preference", mongo.HintOf(err), "%s cannot be read: %s", c.name, mongo.Brief(err))
		p.unread = true
	}
	return nil
}

// unsuited is what it means that no member of a set suits the read preference now.
func (p *planner) unsuited(ctx context.Context, c *mongo.Cluster) (Level, error) {
	may, err := c.MayChoose(ctx)
	if err != nil || !may || p.Restart {
		return Fail, err
	}
	_, begun, err := p.Store.Reload(ctx)
	if begun {
		return Warn, err
	}
	return Fail, err
}
