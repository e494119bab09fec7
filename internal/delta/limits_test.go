package delta

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// TestManyFields goes through the hashed index.
func TestManyFields(t *testing.T) {
	const n = 500
	doc, del, upd, ins, paths := d("_id", 1), d(), d(), d(), d()
	want := d("_id", 1)
	for i := range n {
		name := "f" + strconv.Itoa(i)
		doc = append(doc, bson.E{Key: name, Value: i})
		paths = append(paths, bson.E{Key: name, Value: -i})
		switch i % 3 {
		case 0:
			del = append(del, bson.E{Key: name, Value: false})
		case 1:
			upd = append(upd, bson.E{Key: name, Value: -i})
			want = append(want, bson.E{Key: name, Value: -i})
		default:
			want = append(want, bson.E{Key: name, Value: i})
		}
		ins = append(ins, bson.E{Key: "n" + name, Value: i})
	}
	dl := mustParse(t, kit.Raw(v2("d", del, "u", upd, "i", ins)))
	out, skipped, err := Apply(nil, kit.Raw(doc), dl)
	if err != nil || skipped != 0 || !bytes.Equal(out, kit.Raw(append(want, ins...))) {
		t.Errorf("%d, %v, %s", skipped, err, show(out))
	}
	two, err2 := parse(kit.Raw(v2("u", append(upd, upd[7]))))
	if err2 == nil {
		t.Errorf("a field twice among many is taken: %s", show(two.Raw()))
	}
	mod := mustParse(t, kit.Raw(v1("$set", paths)))
	out, _, err = Apply(nil, kit.Raw(doc), mod)
	if err != nil || !bytes.Equal(out, kit.Raw(append(d("_id", 1), paths...))) {
		t.Errorf("%v, %s", err, show(out))
	}
	_, c, ok := Compose(nil, dl, mustParse(t, kit.Raw(v2("d", ins[:n/2]))))
	if !ok {
		t.Fatal("not composed")
	}
	out, _, err = Apply(nil, kit.Raw(doc), c)
	if err != nil || !bytes.Equal(out, kit.Raw(append(want, ins[n/2:]...))) {
		t.Errorf("%v, %s", err, show(out))
	}
}

// TestTooLarge: neither a result nor the way to it exceeds the limit.
func TestTooLarge(t *testing.T) {
	big := strings.Repeat("x", 9<<20)
	doc := kit.Raw(d("_id", 1, "a", big, "r", arr{}))
	for _, o := range []bson.D{
		v2("i", d("b", big)),
		v2("sr", d("a", true, "l", int32(maxSize))),
		v2("sr", d("a", true, "u16000000", 1)),
		v1("$set", d("b", big)),
		v1("$set", d("r.16000000", 1)),
	} {
		if out, _, err := Apply(nil, doc, mustParse(t, kit.Raw(o))); !errors.Is(err, ErrTooLarge) || out != nil {
			t.Errorf("error %v, %d bytes", err, len(out))
		}
	}
	if _, _, ok := Compose(nil, mustParse(t, kit.Raw(v2("u", d("a", big)))),
		mustParse(t, kit.Raw(v2("u", d("b", big))))); ok {
		t.Error("composed beyond the limit")
	}
	a, b := d(), bson.D{{Key: "$v", Value: int32(2)}}
	subs := d()
	for i := range 4 {
		name := strconv.Itoa(i)
		a = append(a, bson.E{Key: name, Value: arr{}})
		subs = append(subs, bson.E{Key: "s" + name, Value: d("a", true, "l", int32(1<<20))})
	}
	b = append(b, bson.E{Key: "diff", Value: subs})
	if _, _, ok := Compose(nil, mustParse(t, kit.Raw(v2("u", a))), mustParse(t, kit.Raw(b))); ok {
		t.Error("composed beyond the limit")
	}
}

func TestNames(t *testing.T) {
	for want, got := range map[string]string{
		"invalid": Invalid.String(), "replacement": Replacement.String(), "modifiers": Modifiers.String(),
		"diff": Diff.String(),
		"none": None.String(), "classic": Classic.String(), "guarded": Guarded.String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if _, _, err := Apply(nil, kit.Raw(abc), Delta{}); !errors.Is(err, ErrMalformed) {
		t.Errorf("error %v", err)
	}
	if _, form := AppendStatement(nil, Delta{}); form != None {
		t.Errorf("form %s", form)
	}
	if _, err := parse(kit.Raw(abc)); !errors.Is(err, ErrMalformed) {
		t.Errorf("error %v", err)
	}
}
