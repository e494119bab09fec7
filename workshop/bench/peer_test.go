package bench

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

func TestPeerSettings(t *testing.T) {
	peers := []Peer{{Name: peerMongoShake, Program: "sh"}, {Name: peerShakePublished, Program: "sh"},
		{Name: peerPCSM, Program: "sh"}, {Name: peerSecondary}}
	for _, arg := range []string{
		"mongoshake:incr_sync.worker=16", "mongoshake: incr_sync.worker = 12", "mongoshake:filter.oplog.gids=a=b",
		"mongoshake-published:incr_sync.mongo_fetch_method=change_stream",
		"mongoshake:transform.namespace=",
	} {
		if err := SetPeer(peers, arg); err != nil {
			t.Errorf("%s: %v", arg, err)
		}
	}
	plain, _ := peers[0].tool()
	published, drains := peers[1].draining(time.Unix(7, 0))
	if !drains {
		t.Fatal("MongoShake drains no backlog")
	}
	for line, want := range map[string][2]int{ // how often in the file of each
		"incr_sync.worker = 12":                            {1, 0},
		"incr_sync.worker = 16":                            {0, 0},
		"incr_sync.worker = 40":                            {0, 1},
		"filter.oplog.gids = a=b":                          {1, 0},
		"transform.namespace =":                            {1, 0},
		"incr_sync.mongo_fetch_method = oplog":             {1, 0},
		"incr_sync.mongo_fetch_method = change_stream":     {0, 1},
		"incr_sync.shard_key = id":                         {1, 0},
		"incr_sync.shard_key = auto":                       {0, 1},
		"full_sync.executor.majority_enable = true":        {0, 1},
		"sync_mode = all":                                  {1, 0},
		"sync_mode = incr":                                 {0, 1},
		"checkpoint.start_position = 1970-01-01T00:00:07Z": {0, 1},
	} {
		for i, of := range []tool{plain, published} {
			if n := len(slices.DeleteFunc(of.file(), func(l string) bool { return l != line })); n != want[i] {
				t.Errorf("%s has %q %d times, want %d", of.name, line, n, want[i])
			}
		}
	}
	if how := published.describe(); !strings.Contains(how, "sync_mode=incr") ||
		!strings.Contains(how, "incr_sync.mongo_fetch_method=change_stream") || strings.Contains(how, "{") {
		t.Errorf("the report would say %q", how)
	}
}

func TestPeerSettingsRefused(t *testing.T) {
	for arg, why := range map[string]string{
		"mongoshake":                    "name:key=value",
		"mongoshake:incr_sync.worker":   "name:key=value",
		"mongoshake:=3":                 "name:key=value",
		"mongoshake:a=1\nmongo_urls=b":  "name:key=value",
		"incr_sync.worker=3":            "name:key=value",
		"nobody:a=1":                    `no peer "nobody"`,
		"mongoshake-defaults:a=1":       `no peer "mongoshake-defaults"`,
		"mongoshake:mongo_urls=b":       "set by the bench",
		"mongoshake:tunnel.address = b": "set by the bench",
		"pcsm:a=1":                      "no configuration file",
		"secondary:a=1":                 "no configuration file",
	} {
		peers := []Peer{{Name: peerMongoShake, Program: "sh"}, {Name: peerPCSM, Program: "sh"}, {Name: peerSecondary}}
		if err := SetPeer(peers, arg); err == nil || !strings.Contains(err.Error()+mongo.HintOf(err), why) {
			t.Errorf("%q: %v, want %q", arg, err, why)
		}
	}
}

// Every key is in a tool's file once, or the tool would choose.
func TestPeerFilesAreClear(t *testing.T) {
	for _, tl := range tools() {
		seen := map[string]bool{}
		for _, s := range slices.Concat(tl.place, tl.settings) {
			if seen[s.Key] {
				t.Errorf("%s: %s is set twice", tl.name, s.Key)
			}
			seen[s.Key] = true
		}
	}
}

func TestVariants(t *testing.T) {
	v, err := ParseVariant("source spared=--source-load=low --readers=1")
	if err != nil || v.Name != "source spared" || !slices.Equal(v.Args, []string{"--source-load=low", "--readers=1"}) {
		t.Errorf("%+v, %v", v, err)
	}
	for _, bad := range []string{"", "a", "a=", "=--readers=1", "--readers=1", "a=readers"} {
		if _, err := ParseVariant(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
