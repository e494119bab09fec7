package mongo

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/tag"
)

// ParseWriteConcern reads the w of a write concern: majority, the default, or a number of members.
func ParseWriteConcern(s string) (any, error) {
	if s == "" || s == "majority" {
		return "majority", nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 50 {
		return nil, fmt.Errorf("%q is not a write concern: want majority or a number of members from 1 to 50", s)
	}
	return n, nil
}

// TakesCommitQuorum reports servers whose index builds accept a commit quorum.
func (c *Cluster) TakesCommitQuorum() bool {
	fcv, err := ParseVersion(c.Info.FCV)
	return c.Info.Kind != KindStandalone && c.Info.Version.AtLeast(4, 4) && (err != nil || fcv.AtLeast(4, 4))
}

// DataConcern is the w of data writes: 1, which a later proof in the same election term makes durable. A router
// reports no term, so there each write waits for a majority.
func (c *Cluster) DataConcern() any {
	if c.Info.Kind == KindSharded {
		return "majority"
	}
	return 1
}

// DataConcernDocument is the writeConcern of a command with DataConcern.
func (c *Cluster) DataConcernDocument() bson.Raw {
	raw, _ := bson.Marshal(bson.D{{Key: "w", Value: c.DataConcern()}}) // a string or a number
	return raw
}

// ParseReadPreference reads a mode and tag sets such as "dc:east,rack:1;dc:west", which are tried in order.
func ParseReadPreference(mode, tags string) (*readpref.ReadPref, error) {
	m, err := readpref.ModeFromString(cmp.Or(mode, "primary"))
	if err != nil {
		return nil, fmt.Errorf("%q is not a read preference: want primary, primaryPreferred, secondary, secondaryPreferred "+
			"or nearest", mode)
	}
	if tags == "" {
		return readpref.New(m)
	}
	if m == readpref.PrimaryMode {
		return nil, fmt.Errorf("the tags %q choose among members, but the primary is read", tags)
	}
	var sets []tag.Set
	for part := range strings.SplitSeq(tags, ";") {
		if strings.TrimSpace(part) == "" {
			sets = append(sets, tag.Set{}) // any member has it
			continue
		}
		var set tag.Set
		for kv := range strings.SplitSeq(part, ",") {
			k, v, ok := strings.Cut(strings.TrimSpace(kv), ":")
			if !ok || k == "" || v == "" {
				return nil, fmt.Errorf("the tags %q have no name:value in %q", tags, kv)
			}
			set = append(set, tag.Tag{Name: k, Value: v})
		}
		sets = append(sets, set)
	}
	return readpref.New(m, readpref.WithTagSets(sets...))
}
