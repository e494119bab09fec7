package lab

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Move restarts member i at another address, proxy included, and has the set
// know it by that; nothing listens on the old one any more. A primary steps
// down first. It returns when the member is primary or secondary again. No
// other method may be called meanwhile, and URIs made before name the old
// address.
func (c *Cluster) Move(ctx context.Context, i int) error {
	if !c.topo.replicaSet || len(c.members) < 3 {
		return fmt.Errorf("lab: to move a member needs a replica set of three; %s is %s", c.Name(), c.opts.Topology)
	}
	ctx, cancel := withDefaultTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.move(ctx, c.members[i]); err != nil {
		return fmt.Errorf("lab: move member %d of %s: %w", i, c.Name(), err)
	}
	return nil
}

func (c *Cluster) move(ctx context.Context, m *Member) error {
	if primary, err := c.Primary(ctx); err != nil {
		return err
	} else if primary == m.Index {
		if err := c.StepDown(ctx); err != nil {
			return err
		}
	}
	if err := m.Stop(); err != nil {
		return err
	}
	if err := c.readdress(m); err != nil {
		return err
	}
	// The member finds itself in the configuration once it has heard of the new one.
	return errors.Join(c.tellAddress(ctx, m), m.Start(ctx))
}

// readdress chooses new ports for a member that is down.
func (c *Cluster) readdress(m *Member) (err error) {
	n := 1
	if m.proxy != nil {
		n = 2
	}
	ports, err := m.cluster.leases.free(n)
	if err != nil {
		return err
	}
	m.Port, c.layout.Ports[m.Index] = ports[0], ports[0]
	if m.proxy != nil {
		m.proxy.close()
		c.layout.Proxies[m.Index] = ports[1]
		if m.proxy, err = newProxy(ports[1], m.Host(), c.ownerOf, c.opts.PeerLatency); err != nil {
			return err
		}
	}
	return c.layout.save(c.dir)
}

// tellAddress has the primary write a member's address into the configuration.
func (c *Cluster) tellAddress(ctx context.Context, m *Member) error {
	var last error
	err := Poll(ctx, statePoll, func() (bool, error) {
		primary, err := c.Primary(ctx)
		if err != nil {
			return false, err
		}
		// It fails while an election or another change is not done yet.
		last = c.withMember(ctx, primary, c.rootLogin(), func(ctx context.Context, client *mongo.Client) error {
			return reconfigure(ctx, client.Database("admin"), m.Index, m.publicHost())
		})
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

func reconfigure(ctx context.Context, admin *mongo.Database, id int, host string) error {
	var reply struct {
		Config bson.D `bson:"config"`
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply); err != nil {
		return err
	}
	for i, e := range reply.Config {
		switch e.Key {
		case "version":
			version, _ := e.Value.(int32)
			reply.Config[i].Value = version + 1
		case "members":
			members, _ := e.Value.(bson.A)
			if err := setHost(members, id, host); err != nil {
				return err
			}
		}
	}
	return admin.RunCommand(ctx, bson.D{{Key: "replSetReconfig", Value: reply.Config}}).Err()
}

func setHost(members bson.A, id int, host string) error {
	for _, m := range members {
		doc, _ := m.(bson.D)
		at, found := -1, false
		for i, e := range doc {
			switch n, isID := e.Value.(int32); {
			case e.Key == "_id" && isID:
				found = int(n) == id
			case e.Key == "host":
				at = i
			}
		}
		if found && at >= 0 {
			doc[at].Value = host
			return nil
		}
	}
	return fmt.Errorf("the configuration has no member %d", id)
}
