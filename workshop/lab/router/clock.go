package router

import (
	"bytes"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// clock is the highest $clusterTime that any server or client has told. It is
// gossiped as it came, signature included: a time of our own making would push
// the cluster's clock ahead.
type clock struct {
	mu   sync.Mutex
	time bson.Timestamp
	doc  bson.Raw
}

// advance takes a message's $clusterTime if it is the highest yet.
func (c *clock) advance(doc []byte) {
	at, ok := timeOf(doc, "clusterTime")
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.After(c.time) {
		c.time, c.doc = at, bytes.Clone(doc)
	}
}

// now is the highest time and its document, nil before the first.
func (c *clock) now() (bson.Timestamp, bson.Raw) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time, c.doc
}

// timeOf is a document's timestamp of a name.
func timeOf(doc []byte, name string) (bson.Timestamp, bool) {
	t, i, ok := bsoncore.Document(doc).Lookup(name).TimestampOK()
	return bson.Timestamp{T: t, I: i}, ok
}

// document is a value's document, nil when it is none.
func document(v bsoncore.Value) bson.Raw {
	d, _ := v.DocumentOK()
	return bson.Raw(d)
}
