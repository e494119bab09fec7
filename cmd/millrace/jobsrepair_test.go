package main

import (
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/service"
)

// repairs asks for repairs of what a verification has found, by the _ids as it shows them.
func (b *serviceBench) repairs(name string) {
	b.t.Helper()
	key := service.DocumentKey(bson.RawValue{Type: bson.TypeInt32, Value: []byte{7, 0, 0, 0}})
	found := &service.Findings{Differences: []service.DocumentDifference{
		{RepairDocument: service.RepairDocument{NS: "shop.c", TargetNS: "shop.c",
			ID: `{"$numberInt":"7"}`, Kind: "content", Key: key}, Fields: []string{}},
		{RepairDocument: service.RepairDocument{NS: "shop.d", TargetNS: "shop.d", ID: "long", Kind: "extra"},
			Fields: []string{}}}}
	b.expect(cli.ExitOK, "jobs verify --job "+name+" --id torepair", "is asked for")
	b.verified(name, "torepair",
		service.VerifyReport{State: service.VerifyDifferent, Progress: service.VerifyProgress{Differences: 2}}, found)
	b.expect(cli.ExitUsage, "jobs repair --job "+name, "at least one of the flags")
	b.expect(cli.ExitUsage, "jobs repair --job "+name+" --document 8", "lists no document with _id 8")
	b.expect(cli.ExitUsage, "jobs repair --job "+name+" --ns shop.d", "cannot be named")
	b.expect(cli.ExitUsage, "jobs repair --job "+name+" --ns shop.x", "lists no document of shop.x")
	b.expect(cli.ExitUsage, "jobs repair --job "+name+" --all --of none", "has no verification")
	var telling sync.WaitGroup
	telling.Go(func() {
		b.verified(name, "mend", service.VerifyReport{State: service.VerifySame, Repair: &service.RepairProgress{Written: 1}},
			&service.Findings{
				Repaired: []service.RepairedDocument{{NS: "shop.c\x1b[2J", TargetNS: "shop.c", ID: `{"$numberInt":"7"}`,
					Outcome: "written", Why: "\u202e"}}})
	})
	out := b.expect(cli.ExitOK, "jobs repair --job "+name+` --document {"$numberInt":"7"} --ns shop.c --id mend --wait`,
		"repair of 1 document of verification torepair: 1 written, 0 deleted", "written: shop.c")
	telling.Wait()
	if strings.ContainsAny(out, "\x1b\u202e") {
		b.t.Errorf("%q", out)
	}
	if docs, err := b.hub.Verifications.Repair(b.t.Context(), name, "mend"); err != nil || len(docs) != 1 ||
		docs[0].Key != key {
		b.t.Errorf("%+v, %v", docs, err)
	}
	b.expect(cli.ExitOK, "jobs repair --job "+name+" --of torepair --all --id mend", "was asked for already")
}
