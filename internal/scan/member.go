package scan

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/wire"
)

// Member is one member in one life of it. Record ids differ between members. After a kill or a
// rollback a member gives others to what its files did not hold.
type Member struct {
	Node string `bson:"node,omitempty"` // address
	Life string `bson:"life,omitempty"` // process and rollbacks, "" before 4.4
}

// MemberOf identifies the member behind a connection, its process, and the time since a rollback.
// For that, 4.4 and newer add a count of rollbacks on request, without any privilege (tried on 4.4,
// 5.0 and 6.0). Servers before 4.4 do not name their process, so they are not read in record order.
func MemberOf(ctx context.Context, conn *wire.Conn) (Member, error) {
	m := Member{Node: conn.Addr()}
	hello, err := conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}, {Key: "$oplogQueryData", Value: 1}})
	if err != nil && mongo.Classify(err) == mongo.ClassFatal && ctx.Err() == nil {
		hello, err = conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	}
	if err != nil {
		return Member{}, fmt.Errorf("ask member %s who it is: %w", m.Node, err)
	}
	if process, ok := bson.Raw(hello).Lookup("topologyVersion", "processId").ObjectIDOK(); ok {
		rollbacks, _ := bson.Raw(hello).Lookup("$oplogQueryData", "rbid").AsInt64OK()
		m.Life = fmt.Sprintf("%s/%d", process.Hex(), rollbacks)
	}
	return m, nil
}

// Lives returns a temporary error if the member behind a connection has begun another life.
func (m Member) Lives(ctx context.Context, conn *wire.Conn) error {
	now, err := MemberOf(ctx, conn)
	if err == nil && now != m {
		err = mongo.Retry("member "+m.Node+" was restarted, or has rolled back", nil, "")
	}
	return err
}

// CanResume reports whether a member can continue stored slices. It must be the same one in the
// same life. Record ids are checked against the documents seen at them: a member rebuilt under the
// same address has others.
func (r *Reader) CanResume(ctx context.Context, c *schema.Collection, plan []Slice, m Member) (bool, error) {
	if plan[0].Strategy != ByRecord {
		return true, nil
	}
	if plan[0].Member != m {
		return false, nil
	}
	want, ids := anchors(plan)
	if len(want) == 0 {
		return true, nil
	}
	marks, err := r.locate(ctx, c, ids)
	if err != nil {
		return false, err
	}
	for _, at := range marks {
		if rid, ok := want[idKey(markID(at))]; ok && rid != Record(at) {
			return false, nil
		}
	}
	return len(marks) > 0, nil
}

func anchors(plan []Slice) (want map[string]int64, ids []bson.RawValue) {
	const enough = 200
	want = map[string]int64{}
	for _, s := range plan {
		if s.Done || len(ids) > enough {
			continue
		}
		for _, m := range []bson.Raw{s.Lower, s.Upper, s.Position} {
			if len(m) > 0 {
				id := markID(m)
				want[idKey(id)] = Record(m)
				ids = append(ids, bsonraw.RawValue(id))
			}
		}
	}
	return want, ids
}
