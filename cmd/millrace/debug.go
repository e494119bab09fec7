package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

func debugSlicesCommand(a *app) *cobra.Command {
	s := stored{app: a}
	return s.jobCommand(a.described("debug slices", &cobra.Command{}), func(ctx context.Context) error {
		list, err := state.Open(s.cluster, state.Options{Job: s.job}).LoadSlices(ctx)
		if err != nil {
			return err
		}
		if s.output == "json" {
			docs := make([]json.RawMessage, len(list))
			for i, doc := range list {
				docs[i] = extJSON(doc, false)
			}
			return a.Tell(s.output, docs, "")
		}
		return a.writeSlices(list)
	})
}

func (a *app) writeSlices(list []bson.Raw) error {
	all := make([]scan.Slice, len(list))
	for i, raw := range list {
		if err := bson.Unmarshal(raw, &all[i]); err != nil {
			return fmt.Errorf("read a slice: %w", err)
		}
	}
	slices.SortFunc(all, func(a, b scan.Slice) int {
		return cmp.Or(strings.Compare(a.NS, b.NS), strings.Compare(numberOf(a), numberOf(b)))
	})
	_, err := io.WriteString(a.Stdout, textOf("slices", all))
	return err
}

func numberOf(s scan.Slice) string { return fmt.Sprintf("%d of %d", s.N+1, s.Of) }

func bound(b bson.Raw) string {
	if len(b) == 0 {
		return ""
	}
	return cut(cli.Plain(relaxed(b)), 40)
}

// extJSON returns a document as extended JSON, or a JSON string that says why it has no such form.
func extJSON(doc any, canonical bool) json.RawMessage {
	raw, err := bson.MarshalExtJSON(doc, canonical, false)
	if err != nil {
		raw, _ = json.Marshal("not readable: " + err.Error())
	}
	return raw
}

func relaxed(doc any) string { return string(extJSON(doc, false)) }

var errEnough = errors.New("enough")

type oplogLook struct {
	*app
	source, from, output string
	limit                int
	rules                transform.Config
	values               bool

	shown int
}

func debugOplogCommand(a *app) *cobra.Command {
	l := oplogLook{app: a}
	cmd := a.described("debug oplog",
		&cobra.Command{RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd.Context()) }},
		config.Vars{"source": &l.source, "from": &l.from, "limit": &l.limit, "include": &l.rules.Include,
			"exclude": &l.rules.Exclude, "rename": &l.rules.Rename, "values": &l.values})
	cli.BindOutput(cmd, &l.output, "text", "json")
	return cmd
}

func (l *oplogLook) run(ctx context.Context) error {
	rules, err := transform.New(l.rules)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	c, err := l.connectToLook(ctx, "source", l.source)
	if err != nil {
		return err
	}
	defer c.Close()
	l.Results.Stream = true
	p, err := c.Positions(ctx)
	if err != nil {
		return err
	}
	from, err := l.position(ctx, c)
	if err != nil || p.Majority.Before(from.At) {
		return err
	}
	stage := transform.NewStage(rules, from, nil, nil)
	err = oplog.New(c, oplog.Options{Keep: rules.Match}).Run(ctx, from, func(ctx context.Context, b *stream.Batch) error {
		until := b.End
		if _, err := stage.Batch(ctx, b); err != nil {
			return err
		}
		for i := range b.Events {
			if ev := &b.Events[i]; !p.Majority.Before(ev.At) {
				if err := l.show(ev); err != nil {
					return err
				}
			}
		}
		if until.Before(p.Majority) {
			return nil
		}
		return errEnough
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// position is that of a consumer to which the event at from is the next.
func (l *oplogLook) position(ctx context.Context, c *mongo.Cluster) (stream.Position, error) {
	if l.from == "" {
		window, err := oplog.ReadWindow(ctx, c)
		return oplog.Including(window.Oldest), err
	}
	from, err := mongo.ParseOpTime(l.from)
	if err != nil {
		err = cli.WithCode(cli.ExitUsage, fmt.Errorf("--from: %w", err))
	}
	return oplog.Including(from), err
}

func (l *oplogLook) show(ev *stream.Event) error {
	line := textLine
	if l.output == "json" {
		line = jsonLine
	}
	if _, err := fmt.Fprintln(l.Stdout, line(ev, l.values)); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	if l.shown++; l.shown == l.limit {
		return errEnough
	}
	return nil
}

func textLine(ev *stream.Event, values bool) string {
	e := struct {
		*stream.Event
		ID    string
		Value bson.Raw
	}{Event: ev}
	if ev.Change == nil {
		e.ID = relaxed(bson.D{{Key: "_id", Value: bsonraw.RawValue(ev.Key.ID)}})
	}
	if values {
		e.Value = valueOf(ev)
	}
	return textOf("event", e)
}

func jsonLine(ev *stream.Event, values bool) string {
	d := bson.D{{Key: "position", Value: ev.At.String()}, {Key: "kind", Value: ev.Kind.String()},
		{Key: "ns", Value: ev.NS}}
	add := func(key string, value any) { d = append(d, bson.E{Key: key, Value: value}) }
	if ch := ev.Change; ch != nil {
		add("change", string(ch.Kind))
		if ch.To != "" {
			add("to", ch.To)
		}
		var indexes bson.A
		for _, ix := range ch.Indexes {
			if values && len(ix.Spec) > 0 {
				indexes = append(indexes, ix.Spec)
			} else {
				indexes = append(indexes, ix.Name)
			}
		}
		if indexes != nil {
			add("indexes", indexes)
		}
	} else {
		add("target", ev.Route.Target)
		add("_id", bsonraw.RawValue(ev.Key.ID))
		if ev.Key.Shard != nil {
			add("key", ev.Key.Shard)
		}
	}
	if ev.Txn != nil {
		add("transaction", bson.D{{Key: "session", Value: sessionOf(ev.Txn)}, {Key: "number", Value: ev.Txn.Number}})
	}
	if doc := valueOf(ev); values && len(doc) > 0 {
		add("value", doc)
	}
	return relaxed(d)
}

func valueOf(ev *stream.Event) bson.Raw {
	if ev.Change != nil {
		return ev.Change.Options
	}
	return ev.Doc
}

// sessionOf names a transaction's session as short as it is unique.
func sessionOf(t *stream.Transaction) string {
	if _, id, ok := t.Session.Lookup("id").BinaryOK(); ok {
		return hex.EncodeToString(id)
	}
	return hex.EncodeToString(t.Session)
}
