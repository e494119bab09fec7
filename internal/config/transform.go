package config

import (
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

// Transform are the settings of `millrace transform test`.
type Transform struct {
	Common
	Source string
	Rules  transform.Config
	NS     string // the collection that documents are taken to be of
	Doc    string // a file of documents, "-" for standard input
	Sample int    // documents to be drawn from the source, where Doc is not given
}

// CommandTransformTest has settings of this package.
const CommandTransformTest = "transform-test"

// Bind implements Settings.
func (s *Transform) Bind(fs *pflag.FlagSet, _ string) {
	fs.StringVar(&s.NS, "ns", "", "the collection that the documents are of, as `db.coll`")
	fs.StringVar(&s.Doc, "doc", "", "`file` of documents in extended JSON, one after the other; - is standard input")
	fs.IntVar(&s.Sample, "sample", 20, "without --doc, draw so many documents of the collection from the source")
	fs.StringVar(&s.Source, flagSource, "", "connection string `URI` of the source, for --sample; with a password, set MILLRACE_SOURCE or a config file instead")
	section(fs, "Documents")
	bindRules(fs, &s.Rules)
	section(fs, "Rules")
	s.Common.bind(fs)
	section(fs, outputSection)
}

// Validate implements Settings.
func (s *Transform) Validate(o Origins, _ []string) Problems {
	c := newChecker(&s.Common, o)
	c.namespaces(s.Rules)
	db, coll := mongo.SplitNS(s.NS)
	c.bad(db == "" || coll == "", "ns", "names no collection", "give --ns db.coll")
	if s.Doc == "" {
		c.uri(flagSource, s.Source)
		c.bad(s.Sample < 1 || s.Sample > 1000, "sample", "is out of range", "give a number from 1 to 1000")
	}
	return c.problems
}
