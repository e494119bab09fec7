package precheck

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestPrivilegeReaches(t *testing.T) {
	for _, c := range []struct {
		resource string
		yes, no  []string
	}{
		{`{"anyResource":true}`, []string{"a.b", "a.system.js", "a.system.buckets.x", "local.oplog.rs", onCluster}, nil},
		{`{"cluster":true}`, []string{onCluster}, []string{"a.b", "a.system.buckets.x", "admin.x"}},
		{`{"db":"","collection":""}`, []string{"a.b", "admin.x", "a.b.c"},
			[]string{"a.system.js", "a.system.buckets.x", "local.oplog.rs", "config.x", onCluster}},
		{`{"db":"a","collection":""}`, []string{"a.b"}, []string{"b.b", "a.system.js", "a.system.buckets.x"}},
		{`{"db":"","collection":"b"}`, []string{"a.b", "c.b"}, []string{"a.c"}},
		{`{"db":"a","collection":"b"}`, []string{"a.b"}, []string{"a.c", "b.b"}},
		{`{"db":"local","collection":""}`, []string{"local.oplog.rs"}, []string{"a.b"}},
		{`{"db":"","collection":"system.js"}`, []string{"a.system.js"}, []string{"a.b", "a.system.buckets.x"}},
		{`{"db":"a","collection":"system.buckets.x"}`, []string{"a.system.buckets.x"},
			[]string{"a.system.buckets.y", "b.system.buckets.x"}},
		{`{"system_buckets":""}`, []string{"a.system.buckets.x"}, []string{"a.b", "a.system.js", onCluster}},
		{`{"db":"a","system_buckets":""}`, []string{"a.system.buckets.x"}, []string{"b.system.buckets.x"}},
		{`{"db":"a","system_buckets":"x"}`, []string{"a.system.buckets.x"}, []string{"a.system.buckets.y", "a.x"}},
		{`{"db":"","system_buckets":"x"}`, []string{"a.system.buckets.x", "b.system.buckets.x"},
			[]string{"a.system.buckets.y"}},
	} {
		var p privilege
		if err := bson.UnmarshalExtJSON([]byte(`{"resource":`+c.resource+`,"actions":["find"]}`), false, &p); err != nil {
			t.Fatal(err)
		}
		for _, ns := range c.yes {
			if !(grants{p}).may("find", ns) {
				t.Errorf("%s does not reach %s", c.resource, ns)
			}
		}
		for _, ns := range c.no {
			if (grants{p}).may("find", ns) {
				t.Errorf("%s reaches %s", c.resource, ns)
			}
		}
		if (grants{p}).may("insert", "a.b") {
			t.Errorf("%s allows what it does not list", c.resource)
		}
	}
	if !grants(nil).may("find", "a.b") || (grants{}).may("find", "a.b") {
		t.Error("no authentication allows everything, a user without privileges nothing")
	}
}
