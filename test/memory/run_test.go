package memory

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// bed is two clusters, and the program between them.
type bed struct {
	*testing.T
	bin            string
	source, target string // URIs
	sc, tc         *mongo.Client
	rows           *[]string
}

func newBed(t *testing.T, source lab.Options) *bed {
	t.Helper()
	// Else what was dropped, and each version of a large document, would stay for minutes.
	forgetful := map[string]string{"minSnapshotHistoryWindowInSeconds": "0", "transactionLifetimeLimitSeconds": "3600"}
	source.SetParameters = forgetful
	src := lab.ForTest(t, source)
	dst := lab.ForTest(t, lab.Options{OplogMB: 990, CacheGB: 1, SetParameters: forgetful})
	return bedBetween(t, src.URI(), dst.URI())
}

func bedBetween(t *testing.T, source, target string) *bed {
	t.Helper()
	// A majority would wait for the journal each time.
	quick := options.Client().SetWriteConcern(writeconcern.W1())
	return &bed{T: t, bin: test.BuildMillrace(t), source: source, target: target, sc: kit.Client(t, source, quick),
		tc: kit.Client(t, target, quick), rows: &[]string{}}
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// used is what a process took.
type used struct {
	peak int64 // of its resident memory, in bytes
	cpu  time.Duration
	took time.Duration
}

// millrace runs a command between the clusters. until waits for what ends it early; nil
// is its own end.
func (b *bed) millrace(until func(*test.Process), args ...string) used {
	b.Helper()
	began := time.Now()
	p := test.Start(b.T, b.bin, append(args, "--source", b.source, "--target", b.target, "--log-level", "warn")...)
	peak := watchPeak(p)
	if until == nil {
		if err := p.Wait(40 * time.Minute); err != nil {
			b.Fatalf("millrace %s: %v\n%s", strings.Join(args, " "), err, p.Output())
		}
	} else {
		until(p)
		p.Interrupt()
	}
	return used{peak(), p.CPU(), time.Since(began)}
}

// watchPeak reads the peak of a process until it ends. The peak of wait4 counts that of
// the parent before exec, too.
func watchPeak(p *test.Process) (peak func() int64) {
	var most int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.Done():
				return
			case <-tick.C:
				most = max(most, p.PeakMemory())
			}
		}
	}()
	return func() int64 {
		<-ended
		return most
	}
}

// cpuOf is the processor time of a running process, in ticks of 10 ms.
func cpuOf(pid int) time.Duration {
	const user, system, tick = 11, 12, 10 * time.Millisecond // proc(5), after the name
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	u, _ := strconv.Atoi(fields[user])
	s, _ := strconv.Atoi(fields[system])
	return time.Duration(u+s) * tick
}

// same compares all databases that begin with a prefix.
func (b *bed) same(prefix string) {
	b.Helper()
	ours := func(ns string) bool { return strings.HasPrefix(ns, prefix) }
	diffs, err := test.Compare(b.Context(), b.sc, b.tc, test.CompareOptions{Source: ours, Target: ours})
	b.ok(err)
	for _, d := range diffs {
		b.Error(d)
	}
}

func (b *bed) row(format string, args ...any) {
	*b.rows = append(*b.rows, fmt.Sprintf(format, args...))
}

// table logs the rows in the form of a page.
func (b *bed) table(header string) {
	b.Helper()
	line := "|" + strings.Repeat("---|", strings.Count(header, "|")-1)
	b.Logf("\n%s\n%s\n%s", header, line, strings.Join(*b.rows, "\n"))
}
