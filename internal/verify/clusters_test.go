package verify

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
)

func TestPairUp(t *testing.T) {
	rules, err := transform.New(transform.Config{Rename: []string{"shop=store"}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := pairUp([]schema.Collection{
		{NS: "shop.orders", Type: schema.TypeCollection},
		{NS: "shop.view", Type: schema.TypeView},
		{NS: "shop.weather", Type: schema.TypeTimeSeries},
		{NS: "shop.mixed", Type: schema.TypeTimeSeries},
		{NS: "shop.viewed", Type: schema.TypeCollection},
		{NS: "shop.unviewed", Type: schema.TypeView},
		{NS: "shop.series", Type: schema.TypeCollection},
	}, []schema.Collection{
		{NS: "store.orders", Type: schema.TypeCollection},
		{NS: "store.weather", Type: schema.TypeTimeSeries},
		{NS: "store.mixed", Type: schema.TypeCollection},
		{NS: "store.extra", Type: schema.TypeCollection},
		{NS: "store.viewed", Type: schema.TypeView},
		{NS: "store.unviewed", Type: schema.TypeCollection},
		{NS: "store.series", Type: schema.TypeTimeSeries},
		{NS: "store.extraView", Type: schema.TypeView},
		{NS: "crm.extra", Type: schema.TypeTimeSeries},
	}, rules, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []Pair{
		pairOfNames("shop.orders", "store.orders"),
		pairOfNames("shop.system.buckets.weather", "store.system.buckets.weather"),
		pairOfNames("shop.system.buckets.mixed", "store.system.buckets.mixed"),
		pairOfNames("shop.extra", "store.extra"),
		pairOfNames("shop.system.buckets.series", "store.system.buckets.series"),
		pairOfNames("crm.system.buckets.extra", "crm.system.buckets.extra"),
	}
	same := func(a, b Pair) bool { return a.Source == b.Source && a.Target == b.Target }
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("%v\nwant\n%v", got, want)
	}
}
