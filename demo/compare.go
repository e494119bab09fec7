package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// compare lets millrace verify the target, and asks the servers for a second
// opinion.
func (d *demo) compare(ctx context.Context) error {
	d.out.say("\n$ millrace verify --source … --target …")
	var out, errOut bytes.Buffer
	c, err := d.start(ctx, func(c *exec.Cmd) { c.Stdout, c.Stderr = &out, &errOut },
		"verify", "--output", "json", "--recheck-for", "0s")
	if err != nil {
		return err
	}
	failed := c.wait()
	if err := json.Unmarshal(out.Bytes(), &d.report); err != nil {
		return fmt.Errorf("millrace verify: %w: %s", failed, strings.TrimSpace(errOut.String()))
	}
	if failed != nil && d.report.Same {
		return fmt.Errorf("millrace verify: %w: %s", failed, strings.TrimSpace(errOut.String()))
	}
	d.hashed, err = compareHashes(ctx, d.sourceDB, d.targetDB)
	return err
}

// hashes is what the servers' own dbHash command says.
type hashes struct {
	collections int
	different   []string
	took        time.Duration
}

// compareHashes compares the hash of each collection, which the servers
// compute from its documents in the order of their _id.
func compareHashes(ctx context.Context, source, target *mongo.Client) (hashes, error) {
	began := time.Now()
	var h hashes
	for _, db := range []string{"files", "logs", "shop"} {
		of, err := hashesOf(ctx, source, db)
		if err != nil {
			return h, err
		}
		have, err := hashesOf(ctx, target, db)
		if err != nil {
			return h, err
		}
		h.collections += len(of)
		for name, hash := range of {
			if have[name] != hash {
				h.different = append(h.different, db+"."+name)
			}
			delete(have, name)
		}
		for name := range have {
			h.different = append(h.different, db+"."+name)
		}
	}
	slices.Sort(h.different)
	h.took = time.Since(began)
	return h, nil
}

func hashesOf(ctx context.Context, client *mongo.Client, db string) (map[string]string, error) {
	var reply struct {
		Collections map[string]string `bson:"collections"`
	}
	err := client.Database(db).RunCommand(ctx, bson.D{{Key: "dbHash", Value: 1}}).Decode(&reply)
	if err != nil {
		return nil, fmt.Errorf("dbHash of %s: %w", db, err)
	}
	return reply.Collections, nil
}
