package topology

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// The picture is well-formed XML whatever names the set has, has a box for
// each member and a link for each that fetches.
func TestSVG(t *testing.T) {
	set := Hypothetical(Hypothesis{Members: 15, Zones: 1})
	set.Name = `a<b>&"`
	set.Members[3].Hidden, set.Members[14].Healthy, set.Members[9].DelaySeconds = true, false, 3600
	set.Members[5].Host = "<script>a-rather-long-name-of-a-host.example.com:27017"
	tree := AutomaticTree(set, Majority, 0.5, Params{WriteCPU: 1, ServeCPU: 1, Cores: 1, Threads: 1, HopMillis: 1})
	delete(tree, "m14")
	var b strings.Builder
	if err := WriteSVG(&b, set, tree); err != nil {
		t.Fatal(err)
	}
	elements := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok {
			elements[e.Name.Local]++
		}
	}
	if elements["rect"] != 16 || elements["path"] != 2*len(tree) || elements["script"] != 0 {
		t.Errorf("%v, %d links\n%s", elements, len(tree), b.String())
	}
	if err := WriteSVG(io.Discard, &Set{}, nil); err != nil {
		t.Error(err)
	}
}
