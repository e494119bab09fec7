package transform

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/mongo"
)

const (
	maxDBBytes = 63
	maxNSBytes = 255
)

func (s *Set) addRename(text string) error {
	from, to, err := SplitRename(text)
	if err != nil {
		return fmt.Errorf("rename %q: %w; write db=db2 or db.coll=db2.coll2", text, err)
	}
	names := s.dbs
	if strings.Contains(from, ".") {
		names = s.colls
	}
	if old, ok := names[from]; ok && old != to {
		return fmt.Errorf("rename %q: %s is renamed to %s already", text, from, old)
	}
	names[from] = to
	return nil
}

// SplitRename reads "from=to". An error says what is wrong with it.
func SplitRename(text string) (from, to string, err error) {
	sides, err := unescapeSides(text)
	if err != nil {
		return "", "", err
	}
	from, to = sides[0], sides[1]
	if strings.Contains(from, ".") != strings.Contains(to, ".") {
		return "", "", errors.New("one side names a database and the other a collection")
	}
	for i, side := range sides {
		if err := checkName(side); err != nil {
			return "", "", fmt.Errorf("the name %s = %s: %w", []string{"before", "after"}[i], side, err)
		}
		if db, _ := mongo.SplitNS(side); mongo.IsInternal(db) {
			return "", "", fmt.Errorf("%s is internal and takes part in no job", db)
		}
	}
	return from, to, nil
}

func unescapeSides(text string) ([2]string, error) {
	var sides [2]strings.Builder
	if !utf8.ValidString(text) {
		return [2]string{}, errors.New("it is not valid text")
	}
	side, escaped := 0, false
	for _, r := range text {
		switch {
		case escaped:
			sides[side].WriteRune(r)
			escaped = false
		case r == '\\':
			escaped = true
		case r == '=' && side == 0:
			side = 1
		case r == '=':
			return [2]string{}, errors.New("there is more than one =; write \\= for one within a name")
		case r == '*' || r == '?':
			return [2]string{}, errors.New("wildcards are not possible in a rename")
		default:
			sides[side].WriteRune(r)
		}
	}
	if side == 0 {
		return [2]string{}, errors.New("the = is missing")
	}
	if escaped {
		return [2]string{}, errors.New("a backslash at the end escapes nothing")
	}
	return [2]string{sides[0].String(), sides[1].String()}, nil
}

func checkName(name string) error {
	db, coll, dotted := strings.Cut(name, ".")
	switch {
	case db == "":
		return errors.New("the database is missing")
	case len(db) > maxDBBytes:
		return fmt.Errorf("a database name has at most %d bytes", maxDBBytes)
	case strings.ContainsAny(db, "/\\ \"$*<>:|?\x00"):
		return errors.New(`a database name cannot have any of /\ "$*<>:|? or a space`)
	case !dotted:
		return nil
	case coll == "":
		return errors.New("the collection after the dot is missing")
	case len(name) > maxNSBytes:
		return fmt.Errorf("database and collection have more than %d bytes together", maxNSBytes)
	case strings.ContainsAny(coll, "\x00$"):
		return errors.New("a collection name cannot have a $")
	case coll[0] == '.':
		return errors.New("a collection name cannot start with a dot")
	case strings.HasPrefix(coll, "system.") && coll != "system.js":
		return errors.New("names that start with system. belong to the server")
	}
	return nil
}

// Collisions checks the names of kept source namespaces on the target: none twice, none that a server
// refuses, no databases that differ in case only. One error has all problems.
func (s *Set) Collisions(nss []string) error {
	taken, folded := map[string]string{}, map[string]string{}
	var errs []error
	for _, ns := range slices.Sorted(slices.Values(nss)) {
		if !s.Match(ns) {
			continue
		}
		to := s.Target(ns)
		if first, ok := taken[to]; ok && first != ns {
			errs = append(errs, fmt.Errorf("%s and %s would both become %s", first, ns, to))
		}
		taken[to] = ns
		if to != ns {
			if err := checkName(to); err != nil {
				errs = append(errs, fmt.Errorf("%s would become %s: %w", ns, to, err))
			}
		}
		db, _ := mongo.SplitNS(to)
		fold := strings.ToLower(db)
		if first, ok := folded[fold]; ok && first != db {
			errs = append(errs, fmt.Errorf("databases %s and %s of the target would differ in case alone", first, db))
		}
		folded[fold] = db
	}
	return errors.Join(errs...)
}
