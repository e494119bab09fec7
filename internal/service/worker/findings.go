package worker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
)

// The bounds of findings, in bytes of JSON by default. Together they fit into a value of the store.
const (
	perCollection    = 20 // differences
	differencesBytes = 512 << 10
	collectionsBytes = 192 << 10
	schemaBytes      = 96 << 10
	notesBytes       = 16 << 10
	sideBytes        = 4 << 10
	valueBytes       = 2 << 10
	idBytes          = 400
	nameBytes        = 120
	maxNames         = 20
	detailBytes      = 500
)

// collector keeps the first differences of each collection. Calls come one at a time.
type collector struct {
	rules   *transform.Set
	values  bool
	of      map[string]int // kept, by collection
	bytes   int
	kept    []service.DocumentDifference
	leftOut int64
}

func newCollector(rules *transform.Set, values bool) *collector {
	return &collector{rules: rules, values: values, of: map[string]int{}, kept: []service.DocumentDifference{}}
}

func (c *collector) take(d verify.Difference, source, target [][]byte) {
	if c.of[d.NS] >= perCollection || c.bytes >= differencesBytes {
		c.leftOut++
		return
	}
	out := service.DocumentDifference{RepairDocument: service.RepairDocument{NS: d.NS, TargetNS: d.TargetNS,
		UUID: service.UUIDText(d.UUID), ID: service.Short(d.ID.String(), idBytes), Kind: string(d.Kind)}, Fields: []string{}}
	if len(source) == 1 && len(target) == 1 {
		out.Fields = differing(source[0], target[0])
	}
	var masked []string
	if m := c.rules.Route(d.NS).Fields; m != nil {
		masked = m.Masked()
	}
	if d.Kind != verify.Order {
		out.Key = service.DocumentKey(d.ID.RawValue)
	}
	if d.Kind == verify.Extra && slices.Contains(masked, "_id") {
		out.ID, out.Key = hiddenText, ""
	}
	if c.values {
		out.Source = c.side(&out, source, nil)
		out.Target = c.side(&out, target, masked)
	}
	raw, err := json.Marshal(out)
	if err != nil || c.bytes+len(raw) > differencesBytes {
		c.leftOut++
		return
	}
	c.bytes += len(raw)
	c.of[d.NS]++
	c.kept = append(c.kept, out)
}

// side hides masked values: the target may have values of others there.
func (c *collector) side(d *service.DocumentDifference, docs [][]byte, masked []string) string {
	texts := make([]string, 0, len(docs))
	for _, doc := range docs {
		text, whole := sideText(hidden(doc, masked), d.Fields)
		d.Cut = d.Cut || !whole
		texts = append(texts, text)
	}
	if all := strings.Join(texts, "\n"); len(all) > sideBytes {
		d.Cut = true
		return service.Short(all, sideBytes)
	}
	return strings.Join(texts, "\n")
}

func (c *collector) findings(r *verify.Report) *service.Findings {
	f := &service.Findings{Differences: c.kept, DifferencesLeftOut: c.leftOut,
		Expected: len(r.Expected), WithValues: c.values}
	slices.SortStableFunc(r.Collections,
		func(a, b verify.Collection) int { return int(min(b.Differences, 1) - min(a.Differences, 1)) })
	compared := make([]service.VerifiedCollection, len(r.Collections))
	for i := range r.Collections {
		one := &r.Collections[i]
		if one.Skipped != nil || one.Unmapped > 0 {
			f.Expected++
		}
		compared[i] = service.VerifiedCollection{NS: one.NS, TargetNS: one.TargetNS, SourceDocs: one.SourceDocs,
			TargetDocs: one.TargetDocs, Bytes: one.SourceBytes,
			Rechecked: one.Rechecked, Settled: one.Settled, Differences: one.Differences}
	}
	f.Collections, f.CollectionsLeftOut = fitting(collectionsBytes, compared)
	for i := range r.Schema {
		d := &r.Schema[i]
		d.What, d.Detail = service.Short(d.What, detailBytes), service.Short(d.Detail, detailBytes)
	}
	f.Schema, f.SchemaLeftOut = fitting(schemaBytes, r.Schema)
	notes := make([]string, len(r.Notes))
	for i, n := range r.Notes {
		notes[i] = service.Short(n, detailBytes)
	}
	if kept, _ := fitting(notesBytes, notes); len(kept) > 0 {
		f.Notes = kept
	}
	return f
}

func fitting[T any](room int, all []T) (kept []T, leftOut int) {
	kept = []T{}
	for _, one := range all {
		if fits(&room, one) {
			kept = append(kept, one)
		}
	}
	return kept, len(all) - len(kept)
}

func fits(room *int, v any) bool {
	raw, err := json.Marshal(v)
	if err != nil || len(raw)+1 > *room {
		return false
	}
	*room -= len(raw) + 1
	return true
}

func differing(a, b []byte) []string {
	x, y := byName(a), byName(b)
	out := []string{}
	for _, side := range []map[string][]byte{x, y} {
		for name := range side {
			if string(x[name]) == string(y[name]) {
				continue
			}
			if name = service.Short(name, nameBytes); !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxNames)]
}

func byName(doc []byte) map[string][]byte {
	out := map[string][]byte{}
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			break
		}
		out[string(e.Name)] = append(out[string(e.Name)], e.Raw...)
	}
	return out
}

// sideText returns extended JSON. Of a long document it has _id and the differing fields, of long values their size.
func sideText(doc []byte, fields []string) (text string, whole bool) {
	text, whole = fieldsText(doc, func(string) bool { return true })
	if whole && len(text) <= sideBytes {
		return text, true
	}
	text, _ = fieldsText(doc,
		func(name string) bool {
			return name == "_id" || slices.Contains(fields, service.Short(name, nameBytes))
		})
	return text, false
}

func fieldsText(doc []byte, show func(name string) bool) (string, bool) {
	var b strings.Builder
	whole := true
	b.WriteByte('{')
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			return b.String() + "… not valid BSON", false
		}
		if b.Len() > sideBytes {
			whole = false
			break
		}
		name := string(e.Name)
		if !show(name) {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		label, _ := json.Marshal(service.Short(name, valueBytes))
		b.Write(label)
		b.WriteByte(':')
		if len(e.Value) > valueBytes {
			whole = false
			fmt.Fprintf(&b, "… %s of %d bytes", e.Type, len(e.Value))
			continue
		}
		b.WriteString(valueText(bson.RawValue{Type: e.Type, Value: e.Value}))
	}
	b.WriteByte('}')
	return b.String(), whole
}

func valueText(v bson.RawValue) string {
	raw, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: v}}, true, false)
	if err != nil {
		return v.String()
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(raw), `{"v":`), "}")
}

const hiddenText = "(hidden: a mask rule)"

// hidden replaces values at some paths with a text. Of an unreadable document, which may hold masked ones, it shows
// nothing.
func hidden(doc []byte, paths []string) []byte {
	if len(paths) == 0 {
		return doc
	}
	var d bson.D
	if bson.Unmarshal(doc, &d) != nil {
		return nil
	}
	raw, _ := bson.Marshal(hiddenIn(d, paths)) // it was read as such
	return raw
}

func hiddenIn(v any, paths []string) any {
	switch v := v.(type) {
	case bson.D:
		for i, e := range v {
			var inner []string
			for _, p := range paths {
				if rest, ok := strings.CutPrefix(p, e.Key+"."); ok {
					inner = append(inner, rest)
				}
			}
			if v[i].Value = hiddenIn(e.Value, inner); slices.Contains(paths, e.Key) {
				v[i].Value = hiddenText
			}
		}
	case bson.A:
		for i := range v {
			v[i] = hiddenIn(v[i], paths)
		}
	}
	return v
}
