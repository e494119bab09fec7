package access

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// setupCommands make one of everything. A line is a database, the first
// version that knows the command, and the command.
const setupCommands = `
acc   4.2 {"insert":"plain","documents":[{"_id":1,"a":1},{"_id":2,"a":[1,2]},{"_id":"z","ts":{"$timestamp":{"t":0,"i":0}}}]}
acc   5.0 {"insert":"plain","documents":[{"_id":3,"$dollar":1}]}
acc   4.2 {"createIndexes":"plain","indexes":[{"key":{"a":1},"name":"a"},{"key":{"t":"text"},"name":"t"},{"key":{"at":1},"name":"at","expireAfterSeconds":36000},{"key":{"$**":1},"name":"wild"},{"key":{"h":"hashed"},"name":"h"},{"key":{"geo":"2dsphere"},"name":"geo"}]}
acc   4.2 {"createIndexes":"uniq","indexes":[{"key":{"k":1},"name":"k","unique":true}]}
acc   4.2 {"insert":"uniq","documents":[{"_id":1,"k":1},{"_id":2,"k":2}]}
acc   4.2 {"create":"capped","capped":true,"size":8192,"max":5}
acc   4.2 {"insert":"capped","documents":[{"_id":1},{"_id":2},{"_id":3},{"_id":4},{"_id":5},{"_id":6}]}
acc   4.2 {"create":"collated","collation":{"locale":"en","strength":2}}
acc   4.2 {"insert":"collated","documents":[{"_id":"A"},{"_id":"b"}]}
acc   4.2 {"create":"valid","validator":{"n":{"$gte":0}},"validationLevel":"strict"}
acc   4.2 {"insert":"valid","documents":[{"_id":1,"n":-1},{"_id":2,"n":1}],"bypassDocumentValidation":true}
acc   4.2 {"create":"empty"}
acc   4.2 {"create":"view","viewOn":"plain","pipeline":[{"$match":{"a":1}}]}
acc   4.2 {"create":"viewofview","viewOn":"view","pipeline":[]}
acc   4.2 {"insert":"system.js","documents":[{"_id":"f","value":{"$code":"function(){return 1}"}}]}
acc   5.0 {"create":"series","timeseries":{"timeField":"t","metaField":"m"},"expireAfterSeconds":360000000}
acc   5.0 {"insert":"series","documents":[{"t":{"$date":"2026-01-01T00:00:00Z"},"m":1,"v":1},{"t":{"$date":"2026-01-01T00:01:00Z"},"m":2,"v":"x"}]}
acc   5.0 {"createIndexes":"series","indexes":[{"key":{"m":1,"t":-1},"name":"mt"}]}
acc   6.0 {"create":"clustered","clusteredIndex":{"key":{"_id":1},"unique":true},"expireAfterSeconds":360000000}
acc   6.0 {"insert":"clustered","documents":[{"_id":1},{"_id":"x"}]}
acc   6.0 {"create":"images","changeStreamPreAndPostImages":{"enabled":true}}
acc   4.2 {"insert":"fs.files","documents":[{"_id":1,"length":1}]}
acc   4.2 {"insert":"fs.chunks","documents":[{"_id":1,"files_id":1,"n":0}]}
acc   4.2 {"insert":"tocap","documents":[{"_id":1},{"_id":2}]}
acc   4.2 {"insert":"gone","documents":[{"_id":1}]}
acc   4.2 {"createIndexes":"gone","indexes":[{"key":{"a":1},"name":"a"}]}
acc   4.2 {"insert":"old","documents":[{"_id":1}]}
acc   4.2 {"insert":"over","documents":[{"_id":1}]}
acc   4.2 {"insert":"outside","documents":[{"_id":1,"o":1}]}
acc   4.2 {"createIndexes":"outside","indexes":[{"key":{"o":1},"name":"o","unique":true}]}
acc   4.2 {"insert":"inside","documents":[{"_id":1}]}
acc_2 4.2 {"insert":"c","documents":[{"_id":1}]}
acc_3 4.2 {"insert":"c","documents":[{"_id":1}]}
acc_3 4.2 {"create":"v","viewOn":"c","pipeline":[]}
other 4.2 {"insert":"c","documents":[{"_id":1}]}
`

// changeCommands do everything that a job has to follow.
const changeCommands = `
acc   4.2 {"insert":"plain","documents":[{"_id":10,"a":1},{"_id":"y","ts":{"$timestamp":{"t":0,"i":0}}}],"bypassDocumentValidation":true}
acc   5.0 {"insert":"plain","documents":[{"_id":11,"$dollar":1}]}
acc   4.2 {"update":"plain","updates":[{"q":{"_id":1},"u":{"$set":{"b":1}}},{"q":{"_id":2},"u":[{"$set":{"a":[3]}},{"$unset":"none"}]}]}
acc   4.2 {"update":"plain","updates":[{"q":{"_id":10},"u":{"x":1}},{"q":{"_id":12},"u":{"$set":{"up":1}},"upsert":true}]}
acc   4.2 {"delete":"plain","deletes":[{"q":{"_id":"z"},"limit":1}]}
acc   4.2 {"update":"uniq","updates":[{"q":{"_id":1},"u":{"$set":{"k":-1}}},{"q":{"_id":2},"u":{"$set":{"k":1}}},{"q":{"_id":1},"u":{"$set":{"k":2}}}]}
acc   4.2 {"insert":"capped","documents":[{"_id":7},{"_id":8}]}
acc   4.2 {"insert":"collated","documents":[{"_id":"c"}]}
acc   4.2 {"delete":"collated","deletes":[{"q":{"_id":"a"},"limit":1}]}
acc   4.2 {"insert":"valid","documents":[{"_id":3,"n":-1}],"bypassDocumentValidation":true}
acc   4.2 {"update":"valid","updates":[{"q":{"_id":1},"u":{"$set":{"m":1}}}],"bypassDocumentValidation":true}
acc   4.2 {"insert":"system.js","documents":[{"_id":"g","value":{"$code":"function(){return 2}"}}]}
acc   4.2 {"delete":"system.js","deletes":[{"q":{"_id":"f"},"limit":1}]}
acc   5.0 {"insert":"series","documents":[{"t":{"$date":"2026-01-01T00:02:00Z"},"m":1,"v":2},{"t":{"$date":"2026-01-01T00:03:00Z"},"m":3}]}
acc   6.0 {"delete":"series","deletes":[{"q":{"m":2},"limit":0}]}
acc   5.0 {"collMod":"series","expireAfterSeconds":370000000}
acc   5.0 {"createIndexes":"series","indexes":[{"key":{"m":-1},"name":"m"}]}
acc   5.0 {"dropIndexes":"series","index":"mt"}
acc   5.0 {"create":"series2","timeseries":{"timeField":"t"}}
acc   5.0 {"insert":"series2","documents":[{"t":{"$date":"2026-01-01T00:00:00Z"}}]}
acc   5.0 {"create":"series3","timeseries":{"timeField":"t"}}
acc   5.0 {"drop":"series3"}
acc   4.2 {"create":"made"}
acc   4.2 {"createIndexes":"made","indexes":[{"key":{"a":1},"name":"a","unique":true},{"key":{"b":1},"name":"b","expireAfterSeconds":100000}]}
acc   4.2 {"dropIndexes":"plain","index":"a"}
acc   4.2 {"collMod":"plain","index":{"name":"at","expireAfterSeconds":72000}}
acc   4.4 {"collMod":"plain","index":{"name":"h","hidden":true}}
acc   4.2 {"collMod":"valid","validator":{"n":{"$gte":5}},"validationAction":"warn"}
acc   6.0 {"collMod":"plain","changeStreamPreAndPostImages":{"enabled":true}}
acc   6.0 {"collMod":"clustered","expireAfterSeconds":370000000}
acc   4.2 {"collMod":"view","viewOn":"plain","pipeline":[{"$match":{"a":2}}]}
acc   4.2 {"create":"view2","viewOn":"uniq","pipeline":[]}
acc   4.2 {"drop":"viewofview"}
acc   4.2 {"convertToCapped":"tocap","size":4096}
acc   4.2 {"drop":"gone"}
admin 4.2 {"renameCollection":"acc.old","to":"acc.new"}
admin 4.2 {"renameCollection":"acc.over","to":"acc.empty","dropTarget":true}
admin 4.2 {"renameCollection":"acc.new","to":"acc_2.moved"}
admin 4.2 {"renameCollection":"acc.outside","to":"acc.camein"}
admin 4.2 {"renameCollection":"acc.inside","to":"acc.outwent"}
acc_3 4.2 {"dropDatabase":1}
acc_4 4.2 {"insert":"c","documents":[{"_id":1}]}
acc   4.2 {"update":"camein","updates":[{"q":{"_id":1},"u":{"$set":{"p":1}}}]}
`

// setup loads the source, change changes it.
func setup(ctx context.Context, c *driver.Client) error {
	if err := run(ctx, c, setupCommands); err != nil {
		return err
	}
	return bigCollection(ctx, c.Database("acc"))
}

func change(ctx context.Context, c *driver.Client) error {
	if err := run(ctx, c, changeCommands); err != nil {
		return err
	}
	sess, err := c.StartSession()
	if err != nil {
		return err
	}
	defer sess.EndSession(context.WithoutCancel(ctx))
	_, err = sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		for _, name := range []string{"plain", "collated"} {
			if _, err := c.Database("acc").Collection(name).InsertOne(ctx, bson.D{{Key: "_id", Value: "txn"}}); err != nil {
				return nil, err
			}
		}
		return c.Database("acc_2").Collection("c").DeleteOne(ctx, bson.D{{Key: "_id", Value: 1}})
	})
	return err
}

// bigBytes is above the size from which collections are cut.
const bigBytes = 36 << 20

// bigCollection makes one that is copied in several slices, whose bounds are sampled.
func bigCollection(ctx context.Context, db *driver.Database) error {
	pad := strings.Repeat("x", 100<<10)
	var docs []any
	for i := range bigBytes / len(pad) {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad}})
	}
	_, err := db.Collection("big").InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	return err
}

func run(ctx context.Context, c *driver.Client, commands string) error {
	var info struct{ VersionArray []int }
	if err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
		return err
	}
	for line := range strings.Lines(strings.TrimSpace(commands)) {
		var db, json string
		var major, minor int
		if _, err := fmt.Sscanf(line, "%s %d.%d", &db, &major, &minor); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		if info.VersionArray[0] < major || info.VersionArray[0] == major && info.VersionArray[1] < minor {
			continue
		}
		json = line[strings.Index(line, "{"):]
		var cmd bson.D
		if err := bson.UnmarshalExtJSON([]byte(json), false, &cmd); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		raw, err := c.Database(db).RunCommand(ctx, cmd).Raw()
		if err == nil {
			if v, absent := raw.LookupErr("writeErrors"); absent == nil {
				err = fmt.Errorf("%s", v)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}
