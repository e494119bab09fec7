package mongo

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// marker stands in each part of a connection string that must not be printed.
const marker = "qzk"

// wildText has a marker before and after each of some characters that a connection
// string reads as its own.
func wildText(rng *rand.Rand) string {
	special := []string{"@", "/", "?", ":", "#", "%", "%zz", "%4", "%40", ",", ";", "&", "=", " ", `"`, "'", `\`,
		"\n", "\t", "é", "[", "]", "+", "$", "<", "://", "@/", "/@", "?@", "mongodb://", "\x00"}
	text := marker
	for range rng.IntN(5) {
		text += special[rng.IntN(len(special))] + marker
	}
	return text
}

// TestNothingOfABrokenURI: of a connection string that cannot be parsed nothing is
// printed: not by the check, not by Connect, not as an address, not as a database.
func TestNothingOfABrokenURI(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	broken, sound := 0, 0
	for range 20_000 {
		uri := []string{"mongodb://", "mongodb+srv://", "", "mongo://", "mongodb:/"}[min(rng.IntN(20), 4)%5]
		if rng.IntN(20) > 3 {
			uri = "mongodb://"
		}
		if rng.IntN(8) > 0 {
			uri += marker + "user:" + wildText(rng)
			if rng.IntN(10) > 0 {
				uri += "@"
			}
		}
		uri += []string{"127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2", marker, marker + ":" + marker, "127.0.0.1:99999", "[::1]:1",
			"[" + marker}[rng.IntN(7)]
		uri += []string{"", "/", "/" + marker, "/?tls=" + marker, "/?" + marker, "?a=b", "/?w=-" + marker, "/?" + marker +
			"=%zz", "/?readPreference=" + marker, "/?appName=" + wildText(rng)}[rng.IntN(10)]
		err := CheckURI(uri)
		if err == nil {
			sound++
			continue
		}
		broken++
		if HintOf(err) == "" {
			t.Errorf("%q: no hint", uri)
		}
		_, connectErr := Connect(t.Context(), uri, Options{ServerSelectionTimeout: time.Millisecond})
		texts := map[string]string{"check": err.Error() + HintOf(err), "connect": fmt.Sprint(connectErr, HintOf(connectErr))}
		if _, err := splitURI(uri); err != nil { // else only an option is wrong, and the hosts are hosts
			texts["address"], texts["database"], texts["hide"] = Redact(uri), Database(uri), Hide("x "+uri, uri)
		}
		for what, text := range texts {
			if strings.Contains(text, marker) {
				t.Fatalf("%q: %s prints %q", uri, what, text)
			}
		}
	}
	if broken < 2000 || sound < 500 {
		t.Errorf("%d are broken, %d are not", broken, sound)
	}
}

// TestNoPasswordOfASoundURI: a password of a connection string that can be parsed is not
// printed, and what is printed names the host.
func TestNoPasswordOfASoundURI(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	sound := 0
	for range 20_000 {
		password := wildText(rng)
		uri := "mongodb://user:" + password + "@127.0.0.1:1,127.0.0.1:2/?appName=x"
		if CheckURI(uri) != nil {
			continue
		}
		sound++
		shown := Redact(uri) + Hide("cannot use "+uri+" with "+password, uri)
		if strings.Contains(shown, marker) || !strings.Contains(shown, "127.0.0.1:2") {
			t.Fatalf("%q: %s", uri, shown)
		}
	}
	if sound < 500 {
		t.Errorf("%d are sound", sound)
	}
}
