package precheck

import "regexp"

// checkExisting is the check of what the target has already.
const checkExisting = "target collections"

// Skips are settings, each of which has a failed check pass: those that its hint names.
func (c Check) Skips() []string {
	if c.Level != Fail {
		return nil
	}
	if c.Name == checkExisting {
		return []string{"on-existing: merge", "on-existing: drop"}
	}
	var out []string
	allowing := regexp.MustCompile(`--(allow-downgrade|allow-missing|allow-overlap|allow-shard)\b`)
	for _, m := range allowing.FindAllStringSubmatch(c.Hint, -1) {
		out = append(out, m[1]+": true")
	}
	return out
}
