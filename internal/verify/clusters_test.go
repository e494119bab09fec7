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
		{SourceNS: "shop.orders", TargetNS: "store.orders"},
		{SourceNS: "shop.system.buckets.weather", TargetNS: "store.system.buckets.weather"},
		{SourceNS: "shop.system.buckets.mixed", TargetNS: "store.system.buckets.mixed"},
		{SourceNS: "shop.extra", TargetNS: "store.extra"},
		{SourceNS: "shop.system.buckets.series", TargetNS: "store.system.buckets.series"},
		{SourceNS: "crm.system.buckets.extra", TargetNS: "crm.system.buckets.extra"},
	}
	same := func(a, b Pair) bool { return a.SourceNS == b.SourceNS && a.TargetNS == b.TargetNS }
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("%v\nwant\n%v", got, want)
	}
}
