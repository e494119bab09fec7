package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// mongoShakeRecords is the database on the source where it keeps its position.
const mongoShakeRecords = "mongoshake"

// mongoShake is MongoShake's collector with the settings of its documentation,
// changes spread by the hash of _id. from is where its oplog reading begins;
// empty makes a copy first.
func (b *bench) mongoShake(st *site, p Peer, from string) follower {
	how := "collector, sync_mode=all"
	if from != "" {
		how = "collector, sync_mode=incr"
	}
	return follower{
		name: peerMongoShake, kind: KindPeer, how: how + ", 8 workers by the hash of _id, 6 collections and 8 writers at once",
		start: func(ctx context.Context, m *meter) (func() error, <-chan struct{}, error) {
			if err := st.source.direct.Client.Database(mongoShakeRecords).Drop(ctx); err != nil {
				return nil, nil, fmt.Errorf("forget what mongoshake did before: %w", err)
			}
			config, err := b.mongoShakeConfig(ctx, st, from)
			if err != nil {
				return nil, nil, err
			}
			c, err := startChild(ctx, program{name: p.Program, dir: filepath.Dir(config), args: []string{"-conf=" + config, "-verbose=0"}})
			if err != nil {
				return nil, nil, err
			}
			m.runs(c.pid())
			return c.stop, c.done, nil
		},
	}
}

// mongoShakeConfig writes its configuration file.
func (b *bench) mongoShakeConfig(ctx context.Context, st *site, from string) (string, error) {
	dir := filepath.Join(b.dir, "mongoshake")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a directory: %w", err)
	}
	mode := "incr"
	if from == "" {
		mode, from = "all", "1970-01-01T00:00:00Z"
	}
	lines := []string{
		"conf.version = 10", "id = mongoshake", "master_quorum = false",
		"sync_mode = " + mode, "mongo_urls = " + st.source.uri, "mongo_connect_mode = primary",
		"tunnel = direct", "tunnel.message = raw", "tunnel.address = " + st.target.uri,
		"filter.namespace.white = " + dataDB, "filter.ddl_enable = true",
		"checkpoint.storage.url =", "checkpoint.storage.db = " + mongoShakeRecords, "checkpoint.storage.collection = ckpt_default",
		"checkpoint.start_position = " + from,
		"full_sync.reader.collection_parallel = 6", "full_sync.reader.write_document_parallel = 8", "full_sync.reader.document_batch_size = 128",
		"full_sync.reader.fetch_batch_size = 1024", "full_sync.reader.parallel_thread = 1", "full_sync.reader.parallel_index = _id",
		"full_sync.collection_exist_drop = true", "full_sync.create_index = foreground",
		"full_sync.executor.insert_on_dup_update = false", "full_sync.executor.filter.orphan_document = false", "full_sync.executor.majority_enable = false",
		"incr_sync.mongo_fetch_method = oplog", "incr_sync.shard_key = id", "incr_sync.worker = 8", "incr_sync.tunnel.write_thread = 8", "incr_sync.target_delay = 0",
		"incr_sync.worker.batch_queue_size = 64", "incr_sync.adaptive.batching_max_size = 1024", "incr_sync.fetcher.buffer_capacity = 256",
		"incr_sync.executor.upsert = false", "incr_sync.executor.insert_on_dup_update = false", "incr_sync.conflict_write_to = none",
		"incr_sync.executor.majority_enable = false",
		"log.level = warning", "log.dir = " + dir, "log.file = collector.log", "log.flush = false",
	}
	for _, name := range []string{"full_sync.http_port", "incr_sync.http_port", "system_profile_port"} {
		port, err := freePort(ctx)
		if err != nil {
			return "", err
		}
		lines = append(lines, name+" = "+port)
	}
	path := filepath.Join(dir, "collector.conf")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write configuration: %w", err)
	}
	return path, nil
}

// mongoShakeTime is how its configuration names a second.
func mongoShakeTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }
