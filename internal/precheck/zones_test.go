package precheck

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/placing"
)

// TestZoneNeeds: who may not set zones is told which right is missing.
func TestZoneNeeds(t *testing.T) {
	shards := []placing.Shard{{Name: "s0"}, {Name: "s1", Zones: []string{"US"}}}
	from := []placing.Shard{{Name: "s0", Zones: []string{"EU"}}}
	zones := func(tags ...string) map[string]placing.Wish {
		w := placing.Wish{}
		for _, tag := range tags {
			w.Zones = append(w.Zones, placing.Zone{Tag: tag})
		}
		return map[string]placing.Wish{"d.c": w}
	}
	for _, c := range []struct {
		have  string
		zones []string
		want  string
	}{
		{`{"db":"d","collection":"c"}`, nil, "the user lacks "},
		{`{"db":"d","collection":"c"}`, []string{"US"}, "the user lacks find, update, insert, remove on config.tags"},
		{`{"db":"d","collection":"c"}`, []string{"US", "EU"},
			"the user lacks find, update, insert, remove on config.tags; find, update on config.shards"},
		{`{"db":"config","collection":""}`, []string{"US", "EU"}, "the user lacks "},
		{`{"cluster":true}`, []string{"US", "EU"}, "the user lacks "},
	} {
		var p privilege
		text := `{"resource":` + c.have + `,"actions":["find","update","insert","remove","enableSharding"]}`
		if err := bson.UnmarshalExtJSON([]byte(text), false, &p); err != nil {
			t.Fatal(err)
		}
		now := &needs{have: grants{p}, seen: map[string]bool{}}
		(&planner{Input: Input{Wishes: &placing.Source{}}}).zoneNeeds(now,
			sharding{wishes: zones(c.zones...), from: from, shards: shards})
		if got := now.text(); got != c.want {
			t.Errorf("%s, zones %v: %s, want %s", c.have, c.zones, got, c.want)
		}
	}
}
