package mongo

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// OpTime is a position in an oplog: an entry's timestamp and its primary's election term. Timestamps order the
// entries of one majority-committed history; the term distinguishes histories.
type OpTime struct {
	TS   bson.Timestamp `bson:"ts"`
	Term int64          `bson:"t"`
}

// IsZero reports that there is no position.
func (o OpTime) IsZero() bool { return o.TS.IsZero() }

// Compare orders positions by timestamp.
func (o OpTime) Compare(p OpTime) int { return o.TS.Compare(p.TS) }

// Before reports o < p.
func (o OpTime) Before(p OpTime) bool { return o.Compare(p) < 0 }

// First is the least position of an entry at or after o: a second's entries are counted from 1.
func (o OpTime) First() OpTime {
	if o.TS.I == 0 {
		o.TS.I = 1
	}
	return o
}

// Time is the wall-clock second of the position.
func (o OpTime) Time() time.Time { return time.Unix(int64(o.TS.T), 0).UTC() }

// String formats as "seconds:increment", the form ParseOpTime reads.
func (o OpTime) String() string {
	if o.IsZero() {
		return "none"
	}
	return fmt.Sprintf("%d:%d", o.TS.T, o.TS.I)
}

// MinOpTime returns the earlier of two positions.
func MinOpTime(a, b OpTime) OpTime { return slices.MinFunc([]OpTime{a, b}, OpTime.Compare) }

// MaxOpTime returns the later of two positions.
func MaxOpTime(a, b OpTime) OpTime { return slices.MaxFunc([]OpTime{a, b}, OpTime.Compare) }

// ParseOpTime reads "seconds:increment", or a time in RFC 3339 as the first position of that second.
func ParseOpTime(s string) (OpTime, error) {
	if sec, inc, ok := strings.Cut(s, ":"); ok && !strings.Contains(s, "-") {
		t, err1 := strconv.ParseUint(sec, 10, 32)
		i, err2 := strconv.ParseUint(inc, 10, 32)
		if err1 == nil && err2 == nil && t+i > 0 {
			return OpTime{TS: bson.Timestamp{T: uint32(t), I: uint32(i)}, Term: -1}, nil
		}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return OpTime{}, fmt.Errorf("position %q: want seconds:increment (1700000000:1) or a time (2026-01-02T15:04:05Z)", s)
	}
	if t.Unix() <= 0 || t.Unix() > math.MaxUint32 {
		return OpTime{}, fmt.Errorf("position %q: no oplog holds that time", s)
	}
	return OpTime{TS: bson.Timestamp{T: uint32(t.Unix())}, Term: -1}, nil
}
