package oplog

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Position returns the position of a consumer that has applied everything up to applied. readFrom must
// not be after the first entry of any transaction that is open at applied.
func Position(applied, readFrom mongo.OpTime) stream.Position {
	if readFrom.IsZero() {
		return stream.Position{At: applied}
	}
	return stream.Position{At: applied, Mark: fmt.Sprintf("%d:%d/%d", readFrom.TS.T, readFrom.TS.I, readFrom.Term)}
}

// Including returns the position whose next entry is the one at at.
func Including(at mongo.OpTime) stream.Position {
	if !exact(at) {
		return stream.Position{At: at}
	}
	return Position(at.Previous(), at)
}

// ReadFrom returns the first entry to read from a position. Without a resume token that is p.At.
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
