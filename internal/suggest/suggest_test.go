package suggest

import "testing"

func TestName(t *testing.T) {
	known := []string{"source", "target", "shop.orders", "shop.users", "readers"}
	for given, want := range map[string]string{"sorce": "source", "reader": "readers", "shop.ordres": "shop.orders",
		"target": "target", "x": "", "unheardof": "", "": ""} {
		if got := Name(given, known); got != want {
			t.Errorf("%s: %q", given, got)
		}
	}
}
