package topology

import (
	"context"
	"errors"
	"flag"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/workshop/lab"
)

var seven = flag.Bool("topology.seven", false,
	"also test on seven members in three zones, one of them hidden and without a vote")

// reconfigure changes the members of a real set's configuration.
func reconfigure(t *testing.T, c *lab.Cluster, change func(i int, m bson.M)) {
	t.Helper()
	client, err := c.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	var reply struct {
		Config struct {
			ID       string   `bson:"_id"`
			Version  int      `bson:"version"`
			Members  []bson.M `bson:"members"`
			Settings bson.M   `bson:"settings"`
			Protocol int64    `bson:"protocolVersion"`
		} `bson:"config"`
	}
	admin := client.Database("admin")
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	reply.Config.Version++
	for i := range reply.Config.Members {
		change(i, reply.Config.Members[i])
	}
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetReconfig", Value: reply.Config}}).Err(); err != nil {
		t.Fatal(err)
	}
}

// Seven members in three zones: plan, apply, agreement, the loss of an inner
// node, its return, an election, and no write refused.
func TestControlInZones(t *testing.T) {
	if !*seven {
		t.Skip("needs seven servers; -topology.seven")
	}
	c := lab.ForTest(t, lab.Options{Topology: "rs:7", CacheGB: 0.25})
	// Only one vote may change with a configuration.
	reconfigure(t, c, func(i int, m bson.M) {
		m["tags"] = bson.M{"dc": string(rune('a' + i%3))}
		if i == 6 {
			m["hidden"], m["priority"], m["votes"] = true, 0, 0
		}
	})
	o := open(t, c)
	eventually(t, o, "a source for each secondary", func(s *Set) bool { return s.Primary() != nil && len(s.Tree()) == 6 })
	refused := writer(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	apply := NewController(o, ControlOptions{Log: testLog(t)})
	plan, err := apply.Apply(ctx)
	if err != nil {
		t.Fatal(err)
	}
	set, err := o.Observe(ctx)
	if err != nil || !agrees(set, apply) {
		t.Fatalf("after apply: %v\n%s", err, picture(set, plan))
	}
	t.Logf("planned\n%s", picture(set, plan))

	holdCtx, stop := context.WithCancelCause(t.Context())
	held := make(chan error, 1)
	hold := NewController(open(t, c), ControlOptions{Log: testLog(t)})
	go func() { held <- hold.Hold(holdCtx) }()
	inner := member(c, plan.Seats[0].Host)
	if err := inner.Kill(); err != nil {
		t.Fatal(err)
	}
	heals(t, o, "a tree without the inner node", func(s *Set) bool {
		p := hold.Plan()
		return p != nil && len(p.Seats) == 5 && p.Seat(inner.Host()) == nil && hold.Stats().Agrees &&
			checkPlan(s, PlanOptions{}, p) == nil
	})
	if err := inner.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	heals(t, o, "a tree with it", func(s *Set) bool { return agrees(s, hold) })
	if err := c.StepDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	heals(t, o, "a tree under the new primary",
		func(s *Set) bool { return agrees(s, hold) && s.Primary().Host != plan.Primary })
	enough := errors.New("enough")
	stop(enough)
	if err := <-held; !errors.Is(err, enough) {
		t.Error(err)
	}
	for _, err := range refused() {
		t.Errorf("a write was refused: %v", err)
	}
}
