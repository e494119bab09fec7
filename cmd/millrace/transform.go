package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/term"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

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
	failed, first := 0, ""
	for _, doc := range docs {
		one := triedDoc{Before: extJSON(doc, false), After: json.RawMessage("null")}
		after, err := route.Try(doc)
		switch {
		case err != nil:
			failed++
			one.Error = err.Error()
			first = cmp.Or(first, one.Error)
		case after != nil:
			out.Kept++
			one.After = extJSON(after, false)
		}
		out.Documents = append(out.Documents, one)
	}
	if err := r.Tell(s.Output, out, textOf("tried", out)); err != nil {
		return err
	}
	if failed > 0 {
		return cli.WithCode(cli.ExitFailure,
			fmt.Errorf("%s cannot be mapped, first: %s", plural(failed, "document"), first))
	}
	return nil
}

func (r *session) triedDocuments(ctx context.Context, s *config.Transform) ([]bson.Raw, error) {
	switch s.Doc {
	case "":
		return drawn(ctx, s)
	case "-":
		return readDocuments("standard input", os.Stdin)
	}
	f, err := os.Open(s.Doc)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("--doc: %w", err),
			"give the path of a file of documents, or - for standard input")
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
		err := in.Decode(&text)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		var doc bson.Raw
		if err == nil {
			err = bson.UnmarshalExtJSON(text, false, &doc)
		}
		if err != nil {
			return nil, mongo.WithHint(fmt.Errorf("document %d of %s: %w", len(docs)+1, name, err),
				"write documents in extended JSON, one after the other")
		}
		docs = append(docs, doc)
	}
}

func drawn(ctx context.Context, s *config.Transform) (docs []bson.Raw, err error) {
	c, err := mongo.Connect(ctx, s.Source, mongo.Options{AppName: "millrace-transform"})
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	defer c.Close()
	db, coll := mongo.SplitNS(s.NS)
	cur, err := c.Client.Database(db).Collection(coll).
		Aggregate(ctx, bson.A{bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: s.Sample}}}}})
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

func schemaCommand(a *app) *cobra.Command {
	return a.described("config schema", &cobra.Command{RunE: func(*cobra.Command, []string) error {
		schema, err := config.Schema()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.Stdout, "%s\n", schema)
		return err
	}})
}

func keygenCommand(a *app) *cobra.Command {
	var out string
	return a.described("secrets keygen", &cobra.Command{
		RunE: func(*cobra.Command, []string) error {
			if out == "" {
				return cli.WithCode(cli.ExitUsage, errors.New("--out is missing: name the file for the key"))
			}
			key, recipient, err := config.NewKey()
			if err != nil {
				return err
			}
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // a key that is there stays
			if err != nil {
				return cli.WithCode(cli.ExitUsage, fmt.Errorf("write the key: %w", err))
			}
			_, err = fmt.Fprintf(f, "# recipient: %s\n%s\n", recipient, key)
			if err = errors.Join(err, f.Close()); err != nil {
				return fmt.Errorf("write the key: %w", err)
			}
			_, err = fmt.Fprintln(a.Stdout, recipient)
			return err
		},
	}, config.Vars{"out": &out})
}

func sealCommand(a *app) *cobra.Command {
	var recipient string
	var jobs []string
	return a.described("secrets seal", &cobra.Command{
		RunE: func(cmd *cobra.Command, _ []string) error {
			value, err := a.secretInput(cmd.InOrStdin())
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			text, err := config.Seal(recipient, jobs, value)
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			_, err = fmt.Fprintln(a.Stdout, text)
			return err
		},
	}, config.Vars{"recipient": &recipient, "job": &jobs})
}

// maxSecret bounds what is sealed, in bytes.
const maxSecret = 64 << 10

// secretInput reads a secret from the standard input, without an echo where that is a terminal.
func (a *app) secretInput(in io.Reader) (string, error) {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		_, _ = fmt.Fprint(a.Stderr, "value: ")
		raw, err := term.ReadPassword(int(f.Fd()))
		_, _ = fmt.Fprintln(a.Stderr)
		return strings.TrimSpace(string(raw)), err
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxSecret+1))
	if err == nil && len(raw) > maxSecret {
		err = fmt.Errorf("the value on standard input is longer than %d bytes", maxSecret)
	}
	return strings.TrimSpace(string(raw)), err
}
