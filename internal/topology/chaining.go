package topology

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// Finding is one thing to know before chaining is switched.
type Finding struct {
	What string `json:"what"`
	// Stops says that the switch is refused.
	Stops bool `json:"stops"`
}

// CheckChaining says what speaks against switching chaining, and what it will do.
func CheckChaining(set *Set, on bool, p Params) []Finding {
	var out []Finding
	add := func(stops bool, format string, args ...any) {
		out = append(out, Finding{fmt.Sprintf(format, args...), stops})
	}
	primary := set.Primary()
	if primary == nil {
		add(true, "there is no primary to reconfigure the set")
		return out
	}
	up, chained := 0, 0
	for i := range set.Members {
		m := &set.Members[i]
		if m.Votes > 0 && m.Healthy {
			up++
		}
		switch {
		case !m.Healthy:
			add(false, "%s is down", m.Host)
		case m.InitialSync:
			add(true, "%s is in its initial sync, which a change of source could start again", m.Host)
		case m.Source != "" && m.Source != primary.Host:
			chained++
			if !on && (m.Override == nil || !*m.Override) {
				add(false, "%s will leave %s for the primary", m.Host, m.Source)
			}
		}
		if !on && m.Override != nil && *m.Override {
			add(false, "%s goes on chaining: it was started with enableOverrideClusterChainingSetting", m.Host)
		}
	}
	if need := votersOf(set)/2 + 1; up < need {
		add(true, "%d voters are up, a new configuration needs %d", up, need)
	}
	now := Predict(set, set.Tree(), p)
	then := PredictAutomatic(set.chained(), p)
	if !on {
		then = Predict(set, DirectTree(set), p)
	}
	add(false, "members under the primary: %.0f now, %.1f expected; %d are chained now", now.Direct, then.Direct, chained)
	add(false, "predicted throughput: w:1 %+.0f %%, majority %+.0f %%", 100*relative(then.W1, now.W1), 100*relative(then.Majority, now.Majority))
	return out
}

func votersOf(set *Set) int {
	n := 0
	for _, m := range set.Members {
		if m.Votes > 0 {
			n++
		}
	}
	return n
}

// SetChaining reconfigures the set and waits until a majority has the new
// configuration. It does nothing when the setting is right already, and fails
// when the configuration has changed since set was observed.
func (o *Observer) SetChaining(ctx context.Context, set *Set, on bool) error {
	primary := set.Primary()
	if primary == nil {
		return mongo.WithHint(fmt.Errorf("set %s has no primary", set.Name), "wait for the election")
	}
	if set.Chaining == on {
		return nil
	}
	c, err := o.client(primary.Host)
	if err != nil {
		return err
	}
	var reply struct {
		Config bson.D `bson:"config"`
	}
	admin := c.Database("admin")
	if err := admin.RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply); err != nil {
		return fmt.Errorf("read the configuration of %s: %w", set.Name, err)
	}
	config, version, err := withChaining(reply.Config, on)
	if err != nil {
		return err
	}
	if version != set.ConfigVersion {
		return mongo.WithHint(fmt.Errorf("the configuration of %s changed from version %d to %d meanwhile", set.Name, set.ConfigVersion, version), "try again")
	}
	err = admin.RunCommand(ctx, bson.D{{Key: "replSetReconfig", Value: config}}).Err()
	if err != nil {
		return mongo.WithHint(fmt.Errorf("reconfigure %s: %w", set.Name, err),
			"the user needs the role clusterManager; the set needs a majority of its voters")
	}
	return o.waitChaining(ctx, on)
}

// waitChaining waits until the set is seen with the setting.
func (o *Observer) waitChaining(ctx context.Context, on bool) error {
	for {
		set, err := o.Observe(ctx)
		if err == nil && set.Chaining == on {
			return nil
		}
		if perr := pause(ctx, 100*time.Millisecond); perr != nil {
			return fmt.Errorf("the new configuration is not seen: %w", perr)
		}
	}
}

// withChaining is the next version of a configuration with the setting. All
// that it holds besides stays as it is, in its order.
func withChaining(config bson.D, on bool) (next bson.D, version int64, err error) {
	seen := false
	for i, e := range config {
		switch e.Key {
		case "version":
			switch v := e.Value.(type) {
			case int32:
				version = int64(v)
			case int64:
				version = v
			default:
				return nil, 0, fmt.Errorf("the configuration has a version of type %T", v)
			}
			config[i].Value = version + 1
		case "settings":
			settings, ok := e.Value.(bson.D)
			if !ok {
				return nil, 0, fmt.Errorf("the configuration has settings of type %T", e.Value)
			}
			config[i].Value = setField(settings, "chainingAllowed", on)
			seen = true
		}
	}
	if !seen {
		config = append(config, bson.E{Key: "settings", Value: bson.D{{Key: "chainingAllowed", Value: on}}})
	}
	return config, version, nil
}

func setField(d bson.D, key string, value any) bson.D {
	for i := range d {
		if d[i].Key == key {
			d[i].Value = value
			return d
		}
	}
	return append(d, bson.E{Key: key, Value: value})
}
