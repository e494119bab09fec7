package lab

import (
	"testing"
	"time"
)

func TestQuick(t *testing.T) {
	for _, topo := range []string{"rs:1", "rs:3", "standalone"} {
		t.Run(topo, func(t *testing.T) {
			b := time.Now()
			c := ForTest(t, Options{Topology: topo})
			t.Log(time.Since(b), c.URI())
			if topo == "rs:3" {
				p, _ := c.Primary(t.Context())
				b := time.Now()
				if err := c.StepDown(t.Context()); err != nil {
					t.Fatal(err)
				}
				q, _ := c.Primary(t.Context())
				t.Log("stepdown", p, q, time.Since(b))
			}
		})
	}
}
