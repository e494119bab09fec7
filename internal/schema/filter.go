package schema

import (
	"fmt"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

// CheckFilter says why the documents of a collection cannot be filtered as the rules
// want it; nil where they can be, or all of them are kept.
func CheckFilter(c Collection, rules *transform.Set) error {
	keep := rules.Route(c.NS).Filter
	if keep == nil || c.Type == TypeView {
		return nil
	}
	var why string
	switch {
	case c.Type == TypeTimeSeries:
		why = "it is a time series, whose documents are packed in buckets"
	case c.Capped():
		why = "it is capped: a document that an update brings into the filter cannot get its place"
	case c.Collated() && keep.ComparesText():
		why = "it has a collation, and the filter compares text, which is compared byte by byte here"
	default:
		return nil
	}
	return mongo.WithHint(fmt.Errorf("%s cannot be filtered: %s", c.NS, why), "have the pattern of --filter leave it out, or --exclude it")
}
