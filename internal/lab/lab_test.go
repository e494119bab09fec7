package lab

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestQuick(t *testing.T) {
	for _, o := range []Options{
		{}, {}, {Version: "4.2"}, {Version: "4.4"}, {Version: "5.0"}, {Version: "6.0.27"},
		{Topology: "rs:3", Auth: true}, {Topology: "rs:3", Auth: true, TLS: true, Version: "4.2"}, {TLS: true}, {Topology: "rs:3", Auth: true, TLS: true},
		{Topology: "standalone", Auth: true, TLS: true},
		{Topology: "rs:3", Version: "4.4"},
	} {
		t.Run("", func(t *testing.T) {
			b := time.Now()
			c := ForTest(t, o)
			t.Log(o, time.Since(b), c.URI())
			if u := c.X509URI(); u != "" {
				cl, err := mongo.Connect(options.Client().ApplyURI(u))
				if err != nil {
					t.Fatal(err)
				}
				if _, err = cl.Database("x").Collection("y").InsertOne(t.Context(), map[string]int{"a": 1}); err != nil {
					t.Fatal(err)
				}
				cl.Disconnect(t.Context())
			}
			if len(c.members) == 3 {
				p, _ := c.Primary(t.Context())
				b := time.Now()
				if err := c.StepDown(t.Context()); err != nil {
					t.Fatal(err)
				}
				q, _ := c.Primary(t.Context())
				t.Log("stepdown", p, q, time.Since(b))
				b = time.Now()
				c.members[q].Stop()
				t.Log("stop", time.Since(b))
				b = time.Now()
				if err := c.members[q].Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				t.Log("start", time.Since(b))
				q, _ = c.Primary(t.Context())
				c.members[q].Kill()
				b = time.Now()
				if err := c.members[q].Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				t.Log("start after kill", time.Since(b))
			}
		})
	}
}
