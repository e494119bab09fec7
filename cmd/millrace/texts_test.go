package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/seed"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/topology"
	"github.com/millrace/millrace/internal/verify"
)

// fill gives all that a value has a value: 1, "1", true, and lists and maps one item.
func fill(v reflect.Value) {
	switch {
	case !v.CanSet():
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(now()))
	case v.CanInt():
		v.SetInt(1)
	case v.CanUint():
		v.SetUint('1')
	case v.CanFloat():
		v.SetFloat(1)
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("1")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, item := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(item)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, item)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	}
}

func filled[T any]() (v T) {
	fill(reflect.ValueOf(&v).Elem())
	return v
}

func TestTextsFitTheirData(t *testing.T) {
	advice := []*topology.Advice{new(filled[topology.Advice]())}
	advice[0].WriteConcern = "1"
	set, remote := filled[topology.Set](), filled[api.Job]()
	for name, data := range map[string]any{
		"status": filled[job.Status](), "summary": filled[summary](), "finalized before": new(filled[jobInfo]()),
		"plan": filled[job.Plan](), "jobs": filled[[]jobInfo](), "stored": new(filled[jobInfo]()),
		"dropped":     filled[dropped](),
		"remote jobs": filled[[]api.Summary](), "remote job": &remote, "stand of a report": &remote,
		"log": filled[[]service.Entry](), "workers": filled[[]service.Worker](), "verified": new(filled[verify.Report]()),
		"seed plan": filled[seed.Plan](), "tried": filled[tried](), "letter": filled[shownLetter](),
		"retried": filled[retried](), "slices": filled[[]scan.Slice](), "set": &set, "fit": filled[struct {
			Params topology.Params
			Cells  []topology.Cell
		}](), "effect": filled[[]topology.Outcome](), "finalize": filled[struct {
			*api.Job
			Path string
		}](), "advice": struct {
			Params topology.Params
			All    []*topology.Advice
		}{filled[topology.Params](), advice}, "tree": struct {
			Set    *topology.Set
			Plan   *topology.Plan
			Effect []topology.Outcome
		}{&set, new(filled[topology.Plan]()), filled[[]topology.Outcome]()}, "memory": struct {
			Set *topology.Set
			Was *topology.Memory
		}{&set, new(filled[topology.Memory]())},
	} {
		if text := textOf(name, data); strings.Contains(text, "cannot write") || strings.Contains(text, "<no value>") {
			t.Errorf("%s: %s", name, text)
		}
	}
	settings, result := filled[config.Seed](), filled[seed.Result]()
	for name, text := range map[string]string{"seeded": seededText(&settings, &result),
		"verification": verificationText("j", new(filled[api.Verification]()))} {
		if strings.Contains(text, "cannot write") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
