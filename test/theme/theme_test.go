package theme

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/lab"
	millmongo "github.com/millrace/millrace/internal/mongo"
)

func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

func program(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("MILLRACE_TEST_PROGRAM"); bin != "" {
		return bin
	}
	bin := t.TempDir() + "/millrace"
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "github.com/millrace/millrace/cmd/millrace").CombinedOutput(); err != nil {
		t.Fatalf("build millrace: %v\n%s", err, out)
	}
	return bin
}

// startClusters starts both sides, with expiry at work every second.
func startClusters(t *testing.T) *clusters {
	t.Helper()
	c := &clusters{}
	side := func(uri *string, client **mongo.Client) {
		cl, err := lab.Start(t.Context(), lab.Options{CacheGB: 0.5, LeanJournal: true, SetParameters: map[string]string{
			"enableTestCommands": "1", "ttlMonitorSleepSecs": "1", "transactionLifetimeLimitSeconds": "600"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cl.Stop() })
		*uri = cl.URI()
		if *client, err = mongo.Connect(options.Client().ApplyURI(*uri).SetMaxPoolSize(64)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*client).Disconnect(context.Background()) })
		cmd := bson.D{{Key: "setDefaultRWConcern", Value: 1}, {Key: "defaultWriteConcern", Value: bson.D{{Key: "w", Value: 1}}}}
		if err := (*client).Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	side(&c.sourceURI, &c.source)
	side(&c.targetURI, &c.target)
	var err error
	if c.pos, err = millmongo.Connect(t.Context(), c.sourceURI, millmongo.Options{AppName: "theme"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.pos.Close)
	return c
}

// TestThemes plays trials of all themes, or of those that MILLRACE_TEST_THEME
// names, MILLRACE_TEST_ROUNDS (2) of each from MILLRACE_TEST_SEED on,
// MILLRACE_TEST_PARALLEL (4) at once. MILLRACE_TEST_FIRST is a kind of finding, or
// any, that ends a theme. What is found is shrunk for MILLRACE_TEST_SHRINK (1m).
func TestThemes(t *testing.T) {
	c, bin := startClusters(t), program(t)
	seed, rounds := number("MILLRACE_TEST_SEED", uint64(time.Now().UnixNano())), int(number("MILLRACE_TEST_ROUNDS", 2))
	for _, th := range Themes() {
		if only := os.Getenv("MILLRACE_TEST_THEME"); only != "" && !strings.Contains(","+only+",", ","+th.Name+",") {
			continue
		}
		t.Run(th.Name, func(t *testing.T) { playTheme(t, c, bin, th, seed, rounds) })
	}
}

type finding struct {
	t     Trial
	v     verdict
	after time.Duration
	n     int64
}

func playTheme(t *testing.T, c *clusters, bin string, th Theme, seed uint64, rounds int) {
	began := time.Now()
	first := os.Getenv("MILLRACE_TEST_FIRST")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var found []finding
	var told, played atomic.Int64
	var next atomic.Int64
	var wg sync.WaitGroup
	for worker := range int(number("MILLRACE_TEST_PARALLEL", 4)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(rounds) {
					return
				}
				tr := th.New(seed + uint64(i))
				v := play(ctx, c, bin, fmt.Sprintf("w%dr%d", worker, i), tr)
				if ctx.Err() != nil {
					return
				}
				played.Add(1)
				if v.told != "" {
					told.Add(1)
					if os.Getenv("MILLRACE_TEST_TOLD") != "" {
						fmt.Printf("seed %d is told: %s", tr.Seed, v.told)
					}
				}
				if v.kind != fine {
					fmt.Printf("found: theme %q seed %d after %s and %d trials: %s\n", th.Name, tr.Seed, time.Since(began).Round(100*time.Millisecond), played.Load(), v.kind)
					mu.Lock()
					found = append(found, finding{tr, v, time.Since(began), played.Load()})
					mu.Unlock()
					if first == "any" || first != "" && strings.Contains(string(v.kind), first) {
						cancel()
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("theme %q: %d trials from seed %d in %s, %d told, %d findings", th.Name, played.Load(), seed, time.Since(began).Round(time.Second), told.Load(), len(found))
	kinds := map[kind]int{}
	for _, f := range found {
		if kinds[f.v.kind]++; kinds[f.v.kind] > 3 {
			continue
		}
		t.Errorf("FOUND theme %q seed %d after %s and %d trials: %s\n%s", th.Name, f.t.Seed, f.after.Round(100*time.Millisecond), f.n, f.v.kind, f.v.text)
		if kinds[f.v.kind] == 1 && (first == "" || first == "any" || strings.Contains(string(f.v.kind), first)) {
			report(t, c, bin, f)
		}
	}
	t.Logf("kinds: %v", kinds)
}

// report shrinks a finding and prints what is left.
func report(t *testing.T, c *clusters, bin string, f finding) {
	long, err := time.ParseDuration(os.Getenv("MILLRACE_TEST_SHRINK"))
	if err != nil {
		long = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	began, n := time.Now(), 0
	var last verdict
	small := f.t
	if long > 0 {
		small = shrink(ctx, f.t, func(tr Trial) bool {
			if ctx.Err() != nil {
				return false
			}
			n++
			v := play(context.WithoutCancel(ctx), c, bin, fmt.Sprint("shrunk", n), tr)
			if v.kind == f.v.kind {
				last = v
			}
			return v.kind == f.v.kind
		})
	}
	var lines strings.Builder
	head := small
	head.Events = nil
	b, _ := json.Marshal(head)
	fmt.Fprintf(&lines, "%s\n", b)
	for _, e := range small.Events {
		fmt.Fprintf(&lines, "%.400s\n", e)
	}
	t.Logf("SHRUNK %d of %d events (%d tried in %s):\n%s%.1500s", len(small.Events), len(f.t.Events), n, time.Since(began).Round(time.Second), &lines, last.text)
}
