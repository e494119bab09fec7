package hub

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
)

// TestStoredParts: figures of shards and routers come back as they were stored, in few
// bytes, and of points without any nothing is stored.
func TestStoredParts(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	p := &service.Point{From: begin, To: begin.Add(10 * time.Second), Seconds: 10}
	for i := range job.MaxParts {
		p.Shards = append(p.Shards, service.Point{Name: fmt.Sprintf("shard-%04d", i), Seconds: 10,
			Docs: service.NewAmount(41_000, 10), Bytes: service.NewAmount(45_000_000, 10),
			Operations: service.NewAmount(8300, 10), AppliedBytes: service.NewAmount(740_000, 10),
			Lag: service.NewRange(2.5, 10), Window: service.NewRange(90_000, 10)})
		p.Routers = append(p.Routers, service.Point{Name: fmt.Sprintf("router-%04d:27017", i), Seconds: 10,
			Operations: service.NewAmount(100, 10), AppliedBytes: service.NewAmount(45_000_000, 10)})
	}
	p.Shards[1].Seconds = 7.5 // it came later
	p.Shards[1].Docs, p.Shards[1].Lag = service.NewAmount(75, 7.5), service.NewRange(1, 7.5)
	p.Shards[2].Window = service.Range{}
	raw, err := encode(stored(p))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(raw) / job.MaxParts; n > 200 {
		t.Errorf("%d bytes for a shard and a router", n)
	}
	var one storedPoint
	if err := json.Unmarshal(raw, &one); err != nil {
		t.Fatal(err)
	}
	back := one.point()
	b, s := &back.Shards[1], &p.Shards[1]
	b.Bytes, b.Operations, b.AppliedBytes, b.Window = s.Bytes, s.Operations, s.AppliedBytes, s.Window
	if got, want := fmt.Sprintf("%+v", back), fmt.Sprintf("%+v", p); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if raw, err = encode(stored(&service.Point{From: begin, To: begin, Seconds: 10})); err != nil ||
		strings.Contains(string(raw), `"s"`) || strings.Contains(string(raw), `"r"`) {
		t.Errorf("%v: %s", err, raw)
	}
}
