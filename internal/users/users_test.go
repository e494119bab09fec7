package users

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// setOf has one user with a password, or none.
func setOf(t *testing.T, password string) Set {
	t.Helper()
	s := Set{}
	if password == "" {
		return s
	}
	raw, err := bson.Marshal(bson.D{{Key: "_id", Value: "d.u"}, {Key: "userId", Value: bson.NewObjectID()},
		{Key: "user", Value: "u"}, {Key: "db", Value: "d"}, {Key: "credentials", Value: password},
		{Key: "roles", Value: bson.A{}}})
	if err == nil {
		err = s.add(kinds()[1], raw, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestInterrupted: wherever a pass is interrupted, and whatever the source does then, the next one ends with the
// source's user. What somebody else has changed stays.
func TestInterrupted(t *testing.T) {
	for _, was := range []string{"", "one"} { // what the job has written before
		for _, next := range []string{"two", "three", ""} { // what the source has after the interruption
			for _, target := range []string{was, "", "two"} { // not applied; removed to be written again; applied
				own := Own{}
				if was != "" {
					own["user d.u"] = []string{setOf(t, was)["user d.u"].sum}
				}
				own.Begin(Plan(setOf(t, "two"), setOf(t, was), own))
				own.Begin(Plan(setOf(t, "two"), setOf(t, target), own)) // and once more
				c := Plan(setOf(t, next), setOf(t, target), own)
				text := fmt.Sprintf("the target had %q, then %q; the source has %q", was, target, next)
				if len(c.Foreign) > 0 {
					t.Errorf("%s: the job does not know its own user", text)
				}
				put, drop := c.Counts()
				if wantPut, wantDrop := next != "" && next != target, next == "" && target != ""; (put == 1) != wantPut ||
					(drop == 1) != wantDrop {
					t.Errorf("%s: %d written, %d removed", text, put, drop)
				}
				if c := Plan(setOf(t, next), setOf(t, "another's"), own); c.Any() {
					t.Errorf("%s: another's user is changed", text)
				}
			}
		}
	}
}
