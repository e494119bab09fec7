package console

import (
	"net/url"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestReverse: the page of a finalized job leads to one that makes the job which leads back.
func TestReverse(t *testing.T) {
	r := newRig(t)
	r.running("shop", following())
	admin := r.browser("t-admin")
	if code, _ := admin.get("/jobs/shop/reverse"); code != 409 {
		t.Errorf("of a job that follows: %d", code)
	}
	r.tell("shop", &service.Report{UID: "u-shop", Run: "r1", Worker: "w1", State: service.Finished, At: time.Now()})
	_, page := admin.get("/jobs/shop")
	want(t, page, `href="/jobs/shop/reverse"`)
	_, page = admin.get("/jobs/shop/reverse")
	want(t, page, `value="shop-back"`, "start-at: &#34;job:shop&#34;", "target-changes")
	if code, _ := r.browser("t-op").act("/jobs/shop/reverse", url.Values{"do": {"make"}}); code != 403 {
		t.Errorf("an operator: %d", code)
	}
	if code, page := admin.act("/jobs/shop/reverse", url.Values{"do": {"make"}, "as": {"no name"}}); code != 422 &&
		code != 400 {
		t.Errorf("%d %s", code, page)
	}
	code, page := admin.act("/jobs/shop/reverse", url.Values{"do": {"make"}, "as": {"shop-2"}})
	if want(t, page, "shop-2"); code != 200 || r.view.Job("shop-2") == nil {
		t.Errorf("%d %s", code, page)
	}
}
