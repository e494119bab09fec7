package replicate

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/catalog"
	"github.com/millrace/millrace/internal/rule"
	"github.com/millrace/millrace/internal/verify"
)

func TestPairUp(t *testing.T) {
	rules, err := rule.New(rule.Config{Rename: []string{"shop=store"}})
	if err != nil {
		t.Fatal(err)
	}
	got := pairUp([]catalog.Collection{
		{NS: "shop.orders", Type: catalog.TypeCollection},
		{NS: "shop.view", Type: catalog.TypeView},
		{NS: "shop.weather", Type: catalog.TypeTimeSeries},
		{NS: "shop.mixed", Type: catalog.TypeTimeSeries},
		{NS: "shop.viewed", Type: catalog.TypeCollection},
		{NS: "shop.unviewed", Type: catalog.TypeView},
		{NS: "shop.series", Type: catalog.TypeCollection},
	}, []catalog.Collection{
		{NS: "store.orders", Type: catalog.TypeCollection},
		{NS: "store.weather", Type: catalog.TypeTimeSeries},
		{NS: "store.mixed", Type: catalog.TypeCollection},
		{NS: "store.extra", Type: catalog.TypeCollection},
		{NS: "store.viewed", Type: catalog.TypeView},
		{NS: "store.unviewed", Type: catalog.TypeCollection},
		{NS: "store.series", Type: catalog.TypeTimeSeries},
		{NS: "store.extraView", Type: catalog.TypeView},
		{NS: "crm.extra", Type: catalog.TypeTimeSeries},
	}, rules)
	want := []verify.Pair{
		{SourceNS: "shop.orders", TargetNS: "store.orders"},
		{SourceNS: "shop.system.buckets.weather", TargetNS: "store.system.buckets.weather"},
		{SourceNS: "shop.system.buckets.mixed", TargetNS: "store.system.buckets.mixed"},
		{SourceNS: "shop.extra", TargetNS: "store.extra"},
		{SourceNS: "shop.system.buckets.series", TargetNS: "store.system.buckets.series"},
		{SourceNS: "crm.system.buckets.extra", TargetNS: "crm.system.buckets.extra"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v\nwant\n%v", got, want)
	}
}
