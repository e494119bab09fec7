package mongo

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/tag"
)

// ParseReadPreference builds the preference of data reads from its mode and tag
// sets ("dc:east,rack:1;dc:west": sets are tried in order).
func ParseReadPreference(mode, tags string) (*readpref.ReadPref, error) {
	if mode == "" {
		mode = "primary"
	}
	m, err := readpref.ModeFromString(mode)
	if err != nil {
		return nil, fmt.Errorf("--read-preference %q: want primary, primaryPreferred, secondary, secondaryPreferred or nearest", mode)
	}
	if tags == "" {
		return readpref.New(m)
	}
	if m == readpref.PrimaryMode {
		return nil, fmt.Errorf("--read-tags need a --read-preference other than primary")
	}
	var sets []tag.Set
	for _, part := range strings.Split(tags, ";") {
		var set tag.Set
		if strings.TrimSpace(part) == "" { // the set that any member satisfies
			sets = append(sets, set)
			continue
		}
		for _, kv := range strings.Split(part, ",") {
			k, v, ok := strings.Cut(strings.TrimSpace(kv), ":")
			if !ok {
				return nil, fmt.Errorf("--read-tags %q: want name:value pairs, comma between pairs, semicolon between sets", tags)
			}
			set = append(set, tag.Tag{Name: k, Value: v})
		}
		sets = append(sets, set)
	}
	return readpref.New(m, readpref.WithTagSets(sets...))
}
