package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// hello answers the handshake as a mongos does (driver specification "Server
// Discovery and Monitoring": msg is isdbgrid). Without topologyVersion drivers ask
// from time to time and do not wait for a change.
func hello(_ context.Context, c *call) (bson.D, error) {
	c.client.introduce(c.cmd)
	writable := "isWritablePrimary"
	if c.name != "hello" {
		writable = "ismaster"
	}
	d := bson.D{
		{Key: writable, Value: true}, {Key: "msg", Value: "isdbgrid"}, {Key: "helloOk", Value: true},
		{Key: "maxBsonObjectSize", Value: int32(16 << 20)}, {Key: "maxMessageSizeBytes", Value: int32(maxMessage)},
		{Key: "maxWriteBatchSize", Value: int32(100_000)}, {Key: "localTime", Value: bson.NewDateTimeFromTime(time.Now())},
		{Key: "logicalSessionTimeoutMinutes", Value: int32(30)}, {Key: "connectionId", Value: c.client.id},
		{Key: "minWireVersion", Value: int32(0)}, {Key: "maxWireVersion", Value: c.r.features.wire}, {Key: "readOnly", Value: false},
	}
	if user := text(get(c.cmd, "saslSupportedMechs")); user != "" {
		d = append(d, bson.E{Key: "saslSupportedMechs", Value: bson.A{"SCRAM-SHA-256"}})
	}
	return d, nil
}

// buildInfo is that of the servers behind.
func buildInfo(_ context.Context, c *call) (bson.D, error) { return c.r.features.build, nil }

// done answers commands of which nothing has to be done.
func done(context.Context, *call) (bson.D, error) { return bson.D{}, nil }

// serverStatus is the little that drivers and tools look for.
func serverStatus(_ context.Context, c *call) (bson.D, error) {
	version := ""
	for _, e := range c.r.features.build {
		if v, ok := e.Value.(bson.RawValue); ok && e.Key == "version" {
			version = text(v)
		}
	}
	return bson.D{{Key: "host", Value: c.r.Host()}, {Key: "version", Value: version}, {Key: "process", Value: "mongos"},
		{Key: "localTime", Value: bson.NewDateTimeFromTime(time.Now())}, {Key: "opcounters", Value: c.r.Taken().opcounters()}}, nil
}

// endSessions ends sessions on all shards; what fails there ends by its timeout.
func endSessions(ctx context.Context, c *call) (bson.D, error) {
	_ = each(c.r.upstream.names(), func(_ int, shard string) error {
		n, err := c.r.upstream.shard(ctx, shard)
		if err == nil {
			_, err = n.command(ctx, "admin", without(c.cmd))
		}
		return err
	})
	return bson.D{}, nil
}

// onConfig passes a command on to the config servers.
func onConfig(ctx context.Context, c *call) (bson.D, error) {
	reply, _, err := c.send(ctx, configName, sending{db: c.db, cmd: c.cmd, sel: c.sel})
	if err != nil {
		return nil, err
	}
	return passed(reply), nil
}
