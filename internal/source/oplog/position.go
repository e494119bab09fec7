package oplog

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Position is the position of a consumer that has applied everything up to applied. It has to
// read everything from readFrom on again: no transaction that is still open at applied began
// before it.
func Position(applied, readFrom mongo.OpTime) stream.Position {
	if readFrom.IsZero() {
		return stream.Position{At: applied}
	}
	return stream.Position{At: applied, Mark: fmt.Sprintf("%d:%d/%d", readFrom.TS.T, readFrom.TS.I, readFrom.Term)}
}

// Including is the position of a consumer to which what stands at a position is
// the next.
func Including(at mongo.OpTime) stream.Position {
	if !exact(at) {
		return stream.Position{At: at}
	}
	before := mongo.OpTime{TS: at.TS, Term: -1}
	before.TS.I--
	return Position(before, at)
}

// ReadFrom is the first entry to read for a consumer at a position. A position
// without a mark is read from where it stands.
func ReadFrom(p stream.Position) (mongo.OpTime, error) {
	if p.Mark == "" {
		return p.At, nil
	}
	at, term, _ := strings.Cut(p.Mark, "/")
	o, err := mongo.ParseOpTime(at)
	if err == nil {
		o.Term, err = strconv.ParseInt(term, 10, 64)
	}
	if err != nil {
		return o, fmt.Errorf("position %s: %q is no mark in an oplog", p.At, p.Mark)
	}
	return o, nil
}
