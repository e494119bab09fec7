package verify

import (
	"cmp"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/scan"
)

// Routers leave out what shards do not own, and keep that for a cursor as of its opening: documents of
// chunks that move are neither missed nor returned twice. But a document whose shard key a user changes
// meanwhile may come before it has moved and after it, or not at all. So while writes go on, each
// cursor on a sharded collection reads at one time. A walk in _id order may take another time for a
// further cursor: no _id changes.

// routed notes that a side is read through its routers. why is nil where that was asked for.
func (e *Engine) routed(i int, why error) {
	note := "the " + sideName(i) + " was read through its routers"
	if why == nil {
		e.o.Log.Info("the " + sideName(i) + " is read through its routers")
	} else {
		note += ": " + mongo.Concise(why.Error())
		e.o.Log.Warn("the "+sideName(i)+" is read through its routers, which takes longer", "why", why,
			"hint", cmp.Or(mongo.HintOf(why),
				"each shard has to be reachable from here, with the user of the routers or by --"+sideName(i)+"-shard name=URI"))
	}
	e.note(note)
	if i == source {
		e.note("indexes that the source's shards are building were not left out: routers do not show builds")
	}
}

// routed reports a side that is read through routers.
func (s *side) routed() bool { return s.on == nil && s.e.routers[s.i] != nil }

// routersTime returns a time that is not before any acknowledged write.
func (e *Engine) routersTime(ctx context.Context, i int) (at bson.Timestamp, err error) {
	c := e.clusters[i]
	err = again(ctx, e.o.Log, "learn the time of "+c.Address(), func() error {
		raw, err := c.Command(ctx, "admin", askAll())
		at = routerTime(raw)
		return mongo.Wrap(err, "learn the time of %s", c.Address())
	})
	return at, err
}

// askAll has a router ask all shards. The time that it knows then is not before theirs.
func askAll() bson.D { return bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}} }

func routerTime(reply bson.Raw) (at bson.Timestamp) {
	at.T, at.I, _ = reply.Lookup("$clusterTime", "clusterTime").TimestampOK()
	return at
}

// fresh returns what returns the read concern of each cursor of a walk; nil where that is none of one
// time. The time comes from the router that opens the cursor: another one may not know it yet.
func (s *side) fresh(r *scan.Reader) func(ctx context.Context) (bson.D, error) {
	if !s.sharded || !s.e.o.Online {
		return nil
	}
	if !s.cluster().Info.Version.AtLeast(5, 0) && s.e.live[s.i].CompareAndSwap(false, true) {
		s.e.noteLive(s.i, ", older than 5.0,")
	}
	if s.e.live[s.i].Load() {
		return nil
	}
	return func(ctx context.Context) (bson.D, error) {
		raw, err := r.Command(ctx, "admin", askAll())
		return bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: routerTime(bson.Raw(raw))}}, err
	}
}

// forgotten makes the next try of a walk one without a time, if servers keep none for long enough.
func (s *side) forgotten(err error) error {
	if !s.routed() || !scan.Forgotten(err) {
		return err
	}
	return s.e.forgotten(s.i, s.NS, err)
}

func (e *Engine) forgotten(i int, ns string, err error) error {
	if e.live[i].CompareAndSwap(false, true) {
		e.o.Log.Warn("shards do not keep history for as long as it takes to read a collection as of one time", "ns", ns,
			"cause", err)
		e.noteLive(i, "")
	}
	return mongo.Retry("what "+ns+" was is forgotten", err, "")
}

func (e *Engine) noteLive(i int, what string) {
	e.note("the " + sideName(i) + "'s shards" + what + " were not read as of one time:" +
		" a document whose shard key users changed meanwhile may not have been compared")
}

// usersWithin fails where users would have to be read from config servers, which are not to be
// connected to.
func (s *Spec) usersWithin(sides [2]*mongo.Cluster) error {
	for i, via := range []origin.Via{s.SourceVia, s.TargetVia} {
		if s.Users && via == origin.ViaRouters && sides[i].Info.Kind == mongo.KindSharded {
			return mongo.WithHint(fmt.Errorf("cannot compare users: those of the %s are on its config servers",
				sideName(i)), "leave out --users, or --via routers")
		}
	}
	return nil
}
