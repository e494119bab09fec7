package state

import (
	"reflect"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// TestAnew: a job that begins anew has forgotten how far it came, also that its target expires
// documents already, after which it would follow nothing.
func TestAnew(t *testing.T) {
	at := mongo.OpTime{TS: bson.Timestamp{T: 7}}
	fresh := Job{ID: "j", Rules: "r", Mode: ModeFull, Fence: 3, Phase: PhaseCatalog}
	far := fresh
	far.Phase, far.Mark, far.Expiring = PhaseFinalizing, "m", true
	far.Start, far.Consistent, far.Copied, far.Applied, far.Reach, far.Intent = at, at, at, at, at, at
	far.Refused, far.Differences = []stream.Place{{At: at}}, []string{"d"}
	if got := far.Anew(); !reflect.DeepEqual(got, fresh) {
		t.Errorf("%+v, want %+v", got, fresh)
	}
}
