package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/workshop/lab"
)

// TestDiskFull: the disk of serve, with its NATS, is full while two jobs copy, and again
// while they follow. Serve says so, jobs end at their checkpoints, and go on by themselves
// once there is room. Started on a full disk serve ends, and says why.
func TestDiskFull(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	disk, end, err := lab.NewDisk(t.TempDir(), 96)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	b := prepareBed(t, nil)
	b.dir, b.listen = filepath.Join(disk.Path(), "service"), fmt.Sprintf("127.0.0.1:%d", lab.PortForTest(t))
	churn, stop := b.twoJobs()
	b.fill(disk)
	b.ownerless()
	client := b.client()
	if all, err := client.Jobs(t.Context(), "", ""); err != nil || len(all) != 2 || all[0].State != service.Waiting ||
		all[1].State != service.Waiting {
		t.Errorf("the list while nothing can be stored: %+v, %v", all, err)
	}
	// what is small may find room
	large, err := json.Marshal("source: env:SRC\ntarget: env:DST\n" + strings.Repeat("#", 100_000))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.Create(t.Context(), api.NewJob{Draft: api.Draft{Name: "more", Settings: large}}); err == nil ||
		!strings.Contains(err.Error(), "cannot be written") {
		t.Errorf("a change while nothing can be stored: %v", err)
	}
	b.free(disk)
	b.owned()

	b.catchUp(churn)
	b.fill(disk)
	b.workers["w1"].Kill()
	b.startWorker("w1")
	b.serve.Kill()
	b.startServe()
	if err := b.serve.Wait(2 * time.Minute); err == nil ||
		!strings.Contains(b.serve.Output(), "no space left on device") || !strings.Contains(b.serve.Output(), "make room") {
		t.Errorf("serve on a full disk: %v\n%s", err, b.serve.Output())
	}
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}
	b.startServe()
	b.until("that serve is ready", func() bool { code, _ := b.ready(); return code == http.StatusOK })
	b.until("worker w1", func() bool {
		select {
		case <-b.workers["w1"].Done(): // it did not find NATS, and its supervisor starts it again
			b.startWorker("w1")
		default:
		}
		return !b.says("w1").IsZero()
	})
	b.owned()
	churn.Stop()
	stop()
	b.finishBoth()
	t.Logf("%d operations written meanwhile", churn.Operations())
	b.endAll()
}

// fill has the disk of serve take no more, and waits until serve says so.
func (b *bed) fill(disk *lab.Disk) {
	b.Helper()
	if err := disk.Fill(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.until("that serve is not ready", func() bool {
		code, f := b.ready()
		return code == http.StatusServiceUnavailable && f.Code == api.CodeUnavailable && strings.Contains(f.Hint, "make room")
	})
}

// free makes room again, and waits until serve is ready: the same process.
func (b *bed) free(disk *lab.Disk) {
	b.Helper()
	if err := disk.Free(); err != nil {
		b.Fatal(err)
	}
	b.until("that serve is ready", func() bool { code, _ := b.ready(); return code == http.StatusOK })
	select {
	case <-b.serve.Done():
		b.Fatal("serve has ended")
	default:
	}
}

// client speaks to serve as its administrator.
func (b *bed) client() *api.Client {
	b.Helper()
	token, err := os.ReadFile(filepath.Join(b.dir, "token"))
	if err != nil {
		b.Fatal(err)
	}
	c := api.NewClient(b.listen, strings.TrimSpace(string(token)))
	b.Cleanup(c.Close)
	return c
}
