package mongo

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// FuzzURI: no connection string makes the check panic, every refusal has a
// hint, and a password is shown in none.
func FuzzURI(f *testing.F) {
	for _, uri := range []string{
		"mongodb://h:1,h2:2/?replicaSet=x", "mongodb://u:sekrit9@h/db?authSource=admin", "mongodb+srv://u:sekrit9@h/", "",
		"mongodb://u:sekrit9@h:99999999/", "mongodb://u:sekrit9@[::1]:27017/?tls=true", "mongodb://u:sekrit9@%2Ftmp%2Fsock/",
		"mongodb://u:sekrit9/@h/", "mongodb://u:sekrit9?@h/", "mongodb://u:%zzsekrit9@h/", "mongodb://:sekrit9@h",
		"MONGODB://u:sekrit9@h/",
		"mongodb://u:sekrit9@h/?authMechanismProperties=A:B", "mongodb://h/?readPreferenceTags=dc:a&wtimeoutMS=-1",
		"://u:sekrit9@h",
		"mongodb://h/?appName=sekrit9@", "u:sekrit9@h/?x=http://y",
	} {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		if len(uri) > 10_000 || strings.HasPrefix(uri, "mongodb+srv://") || strings.Contains(uri, "File=") {
			return // names are not looked up, files not opened
		}
		err := CheckURI(uri)
		HasPassword(uri)
		shown := Redact(uri)
		if err != nil {
			if HintOf(err) == "" {
				t.Errorf("%q: no hint", uri)
			}
			shown += err.Error()
		}
		// The marker stands for a password where it stands before an @.
		const password = "sekrit9"
		if before, _, ok := strings.Cut(uri, "@"); ok && strings.Contains(before, ":"+password) &&
			strings.Count(uri, password) == 1 && strings.Contains(shown, password) {
			t.Errorf("%q: the password is shown: %s", uri, shown)
		}
	})
}

// FuzzOpTime: what is taken as a position is printed as the same one.
func FuzzOpTime(f *testing.F) {
	for _, s := range []string{"1700000000:1", "0:1", "4294967295:4294967295", "4294967296:1", "2026-01-02T15:04:05Z",
		"1960-01-01T00:00:00Z", "2200-01-01T00:00:00Z", ":", "-1:1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := ParseOpTime(s)
		if err != nil {
			return
		}
		again, err := ParseOpTime(o.String())
		if err != nil || again.TS != o.TS {
			t.Errorf("%q is %s, which is %v, %v", s, o, again, err)
		}
		if strings.Contains(s, "T") && o.Time().Year() < 1970 {
			t.Errorf("%q is %s", s, o.Time())
		}
	})
}

// FuzzOpTimeDocument: a position read from a document.
func FuzzOpTimeDocument(f *testing.F) {
	for _, o := range []OpTime{{}, {TS: bson.Timestamp{T: 1, I: 2}, Term: 3}} {
		b, err := bson.Marshal(o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var o OpTime
		if bson.Unmarshal(b, &o) != nil {
			return
		}
		again, err := bson.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var p OpTime
		if err := bson.Unmarshal(again, &p); err != nil || p != o {
			t.Errorf("%v became %v, %v", o, p, err)
		}
	})
}
