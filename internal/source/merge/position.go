package merge

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// partMark is where one part resumes, perhaps before the merged stream: repeated events are
// skipped.
type partMark struct {
	Name string `json:"name"`
	T    uint32 `json:"t"`
	I    uint32 `json:"i"`
	Term int64  `json:"term"`
	Mark string `json:"mark,omitempty"`
}

// Position is that of a consumer that has everything up to at, with the positions of the parts.
// None may be after at.
func Position(at mongo.OpTime, names []string, parts map[string]stream.Position) (stream.Position, error) {
	for _, name := range names {
		p, ok := parts[name]
		switch {
		case !ok || p.At.IsZero():
			return stream.Position{}, fmt.Errorf("position %s: %q has none", at, name)
		case at.Before(p.At):
			return stream.Position{}, fmt.Errorf("position %s: that of %q, %s, is after it", at, name, p.At)
		}
	}
	return joined(at, names, parts), nil
}

// Joined is Position for parts that may be after at: they have nothing before their own positions.
func Joined(at mongo.OpTime, parts map[string]stream.Position) stream.Position {
	return joined(at, slices.Sorted(maps.Keys(parts)), parts)
}

func joined(at mongo.OpTime, names []string, parts map[string]stream.Position) stream.Position {
	marks := make([]partMark, 0, len(names))
	for _, name := range names {
		marks = append(marks, markOf(name, parts[name]))
	}
	return stream.Position{At: at, Mark: encode(marks)}
}

// Parts returns the positions of the parts, by name.
func Parts(pos stream.Position) (map[string]stream.Position, error) {
	marks, err := decode(pos.Mark)
	if err != nil {
		return nil, fmt.Errorf("position %s: %w", pos.At, err)
	}
	parts := map[string]stream.Position{}
	for _, m := range marks {
		if _, twice := parts[m.Name]; twice {
			return nil, fmt.Errorf("position %s: %q is in it twice", pos.At, m.Name)
		}
		at := mongo.OpTime{TS: bson.Timestamp{T: m.T, I: m.I}, Term: m.Term}
		parts[m.Name] = stream.Position{At: at, Mark: m.Mark}
	}
	return parts, nil
}

// Without returns the mark of a position without parts that have ended.
func Without(mark string, gone []string) (string, error) {
	marks, err := decode(mark)
	return encode(slices.DeleteFunc(marks, func(m partMark) bool { return slices.Contains(gone, m.Name) })), err
}

func decode(mark string) (marks []partMark, err error) {
	if err := json.Unmarshal([]byte(mark), &marks); err != nil {
		return nil, fmt.Errorf("%q does not say where the parts of a merged source go on: %w", mark, err)
	}
	return marks, nil
}

func markOf(name string, p stream.Position) partMark {
	return partMark{Name: name, T: p.At.TS.T, I: p.At.TS.I, Term: p.At.Term, Mark: p.Mark}
}

func encode(marks []partMark) string {
	b, err := json.Marshal(marks)
	if err != nil {
		panic(err) // numbers and strings
	}
	return string(b)
}
