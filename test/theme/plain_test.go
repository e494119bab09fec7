package theme

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestPlain plays each point in its plainest order.
func TestPlain(t *testing.T) {
	c, bin := startClusters(t), program(t)
	set := func(coll string, id any, k int) Event {
		return update(coll, doc("_id", id), doc("$set", doc("k", k)))
	}
	folded := doc("locale", "en", "strength", 2)
	keys := []Event{src("create", "keys", "collation", folded),
		src("createIndexes", "keys", "indexes", arr(doc("key", doc("k", 1), "name", "k_1", "unique", true)))}
	caught, kill := Event{Do: CaughtUp}, Event{Do: Kill}
	all := map[string][]Event{
		"3a": append(following(append(keys, insert("keys", doc("_id", "x", "k", 5)), insert("keys", doc("_id", "z", "k", 6)))),
			set("keys", "x", 1), set("keys", "x", 2), set("keys", "z", 1), sleep(100), kill, set("keys", "z", 3), start(), await("following"), caught),
		"3b": append(following([]Event{src("create", "ids", "collation", folded), insert("ids", doc("_id", "a", "k", 0))}),
			update("ids", doc("_id", "a"), doc("k", 1)), remove("ids", doc("_id", "a")), insert("ids", doc("_id", "A", "k", 2)), sleep(100), kill,
			remove("ids", doc("_id", "A")), start(), await("following"), caught),
		"2a": append(following([]Event{src("create", "ring", "capped", true, "size", 4096, "max", 3), insert("ring", doc("_id", 1)), insert("ring", doc("_id", 2)), insert("ring", doc("_id", 3))}),
			caught, kill, insert("ring", doc("_id", 4)), insert("ring", doc("_id", 5)), insert("ring", doc("_id", 6)), insert("ring", doc("_id", 3)), start(), await("following"), caught),
		"2b": append(following([]Event{src("create", "log", "capped", true, "size", 4096, "max", 5), insert("log", doc("_id", 1))}),
			caught, kill, insert("log", doc("_id", 2)), insert("log", doc("_id", 3)), rename("DB.log", "DB.log_old", true),
			src("create", "log", "capped", true, "size", 4096, "max", 5), insert("log", doc("_id", 1)), start(), await("following"), caught),
		"7": append(following([]Event{insert("c", doc("_id", 1, "v", 0))}),
			dst("delete", "c", "deletes", arr(doc("q", doc("_id", 1), "limit", 1))), update("c", doc("_id", 1), doc("$set", doc("v", 1))), sleep(1500), start(), await("following")),
		"11": append(following([]Event{insert("a", doc("_id", 1, "v", 0), doc("_id", 2, "v", 0)), insert("b", doc("_id", 1, "v", "b"))}),
			dst("delete", "a", "deletes", arr(doc("q", doc("_id", 1), "limit", 1))), throttle(1), update("a", doc("_id", 1), doc("$set", doc("v", 1))),
			rename("DB.a", "DB.c", false), rename("DB.b", "DB.a", false), throttle(0), caught),
		"10": {src("createIndexes", "c", "indexes", arr(doc("key", doc("at", 1), "name", "at_1", "expireAfterSeconds", 1))),
			update("c", doc("_id", 1), arr(doc("$set", doc("at", "$$NOW"))), "upsert", true), {Do: Clone},
			update("c", doc("_id", 1), arr(doc("$set", doc("at", doc("$add", arr("$$NOW", 3_600_000)))))), {Do: Expire}, start(), await("following"), caught},
		"unique ring": append(following([]Event{src("create", "ring", "capped", true, "size", 4096, "max", 3), src("createIndexes", "ring", "indexes", arr(doc("key", doc("k", 1), "name", "k_1", "unique", true))),
			insert("ring", doc("_id", 1, "k", 1))}), insert("ring", doc("_id", 2, "k", 2)), insert("ring", doc("_id", 3, "k", 3)), insert("ring", doc("_id", 4, "k", 1)), sleep(50), kill, start(), await("following"), caught),
	}
	n := 0
	for name, events := range all {
		if only := os.Getenv("MILLRACE_TEST_PLAIN"); only != "" && !strings.Contains(","+only+",", ","+name+",") {
			continue
		}
		n++
		tr := Trial{Theme: name, Events: events}
		if name == "11" {
			tr.Args = []string{"--on-conflict", "skip"}
		}
		v := play(t.Context(), c, bin, fmt.Sprint("plain", n), tr)
		fmt.Printf("PLAIN %s: %q told %.300q %.300s\n", name, v.kind, v.told, v.text)
	}
}
