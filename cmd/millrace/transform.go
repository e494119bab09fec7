package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

func (a *app) transformCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "transform", Short: "Try rules on documents", RunE: cli.Group}
	var s config.Transform
	test := &cobra.Command{
		Use:   "test --ns DB.COLL",
		Short: "Show documents before and after the rules of a sync",
		Long: `Applies --filter, --fields and --rename to documents of a file or to some that are
drawn from a source, as a sync would, and shows each before and after. Nothing is
written anywhere. A document that a rule cannot map is an error (exit code 1).`,
		Example: `  millrace transform test --config sync.yaml --ns shop.orders --doc order.json
  echo '{"_id": 1, "card": "4711"}' | millrace transform test --ns shop.orders --doc - --fields 'shop.orders={"mask": {"card": {"last": 2}}}'
  millrace transform test --config sync.yaml --ns shop.orders --sample 20`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(a.configured(test, config.CommandTransformTest, &s, func(ctx context.Context, run *session) error { return run.tryRules(ctx, &s) }))
	return cmd
}

// tried is what becomes of documents.
type tried struct {
	NS        string     `json:"ns"`
	Target    string     `json:"target,omitempty"` // "" where the rules do not keep the collection
	Kept      int        `json:"kept"`
	Documents []triedDoc `json:"documents"`
}

type triedDoc struct {
	Before json.RawMessage `json:"before"`
	After  json.RawMessage `json:"after"` // null where the rules do not keep the document
	Error  string          `json:"error,omitempty"`
}

func (r *session) tryRules(ctx context.Context, s *config.Transform) error {
	rules, err := transform.New(s.Rules)
	if err != nil {
		return err
	}
	docs, err := r.triedDocuments(ctx, s)
	if err != nil {
		return err
	}
	out := tried{NS: s.NS, Documents: []triedDoc{}}
	route := rules.Route(s.NS)
	if route.Kept {
		out.Target = route.Target
	}
	failed := 0
	for _, doc := range docs {
		one := triedDoc{Before: jsonDoc(doc), After: json.RawMessage("null")}
		after, err := route.Try(doc)
		switch {
		case err != nil:
			failed++
			one.Error = err.Error()
		case after != nil:
			out.Kept++
			one.After = jsonDoc(after)
		}
		out.Documents = append(out.Documents, one)
	}
	if err := r.Tell(s.Output, out, triedText(out)); err != nil {
		return err
	}
	if failed > 0 {
		return cli.WithCode(cli.ExitFailure, fmt.Errorf("%s cannot be mapped, first: %s", plural(failed, "document"), firstError(out)))
	}
	return nil
}

func firstError(t tried) string {
	for _, d := range t.Documents {
		if d.Error != "" {
			return d.Error
		}
	}
	return ""
}

func jsonDoc(doc bson.Raw) json.RawMessage {
	b, err := bson.MarshalExtJSON(doc, false, false)
	if err != nil {
		b, _ = json.Marshal(doc.String())
	}
	return b
}

func triedText(t tried) string {
	var b strings.Builder
	if t.Target == "" {
		fmt.Fprintf(&b, "%s is not kept\n", cli.Plain(t.NS))
	} else if fmt.Fprintf(&b, "%s\n", cli.Plain(t.NS)); t.Target != t.NS {
		fmt.Fprintf(&b, "  on the target as %s\n", cli.Plain(t.Target))
	}
	for _, d := range t.Documents {
		fmt.Fprintf(&b, "- %s\n", cli.Plain(string(d.Before)))
		switch {
		case d.Error != "":
			fmt.Fprintf(&b, "! %s\n", cli.Plain(d.Error))
		case string(d.After) == "null":
			b.WriteString("  not kept\n")
		case bytes.Equal(d.Before, d.After):
			b.WriteString("  as it is\n")
		default:
			fmt.Fprintf(&b, "+ %s\n", cli.Plain(string(d.After)))
		}
	}
	fmt.Fprintf(&b, "%d of %s kept\n", t.Kept, plural(len(t.Documents), "document"))
	return b.String()
}

// triedDocuments are those of a file, or some of the source.
func (r *session) triedDocuments(ctx context.Context, s *config.Transform) ([]bson.Raw, error) {
	switch s.Doc {
	case "":
		return drawn(ctx, s)
	case "-":
		return readDocuments("standard input", os.Stdin)
	}
	f, err := os.Open(s.Doc)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("--doc: %w", err), "give the path of a file of documents, or - for standard input")
	}
	defer func() { _ = f.Close() }()
	return readDocuments(s.Doc, f)
}

// mostTried bounds a file of documents in bytes.
const mostTried = 64 << 20

func readDocuments(name string, from io.Reader) (docs []bson.Raw, err error) {
	in := json.NewDecoder(io.LimitReader(from, mostTried))
	for {
		var text json.RawMessage
		if err := in.Decode(&text); errors.Is(err, io.EOF) {
			return docs, nil
		} else if err != nil {
			return nil, mongo.WithHint(fmt.Errorf("document %d of %s: %w", len(docs)+1, name, err), "write documents in extended JSON, one after the other")
		}
		var doc bson.Raw
		if err := bson.UnmarshalExtJSON(text, false, &doc); err != nil {
			return nil, mongo.WithHint(fmt.Errorf("document %d of %s: %w", len(docs)+1, name, err), "write documents in extended JSON, one after the other")
		}
		docs = append(docs, doc)
	}
}

// drawn are documents of the source, at random.
func drawn(ctx context.Context, s *config.Transform) (docs []bson.Raw, err error) {
	c, err := mongo.Connect(ctx, s.Source, mongo.Options{AppName: "millrace-transform"})
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	defer c.Close()
	db, coll := mongo.SplitNS(s.NS)
	cur, err := c.Client.Database(db).Collection(coll).Aggregate(ctx, bson.A{bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: s.Sample}}}}})
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	if err != nil {
		return nil, fmt.Errorf("draw documents of %s: %w", s.NS, err)
	}
	if len(docs) == 0 {
		return nil, mongo.WithHint(fmt.Errorf("%s has no documents on the source", s.NS), "look for a mistyped name")
	}
	return docs, nil
}
