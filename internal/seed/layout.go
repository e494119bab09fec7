package seed

import (
	"path"
	"slices"
	"strings"
)

// The names of a data directory. Which of them a copy needs is told by the place
// of a name and by the options that the directory was made with: with
// directoryPerDB a directory journal holds the engine's log and also the tables of
// a database of that name.

// storageFile says how the data directory was made; a mongod reads it first.
const storageFile = "storage.bson"

// kind is what becomes of a file of a data directory.
type kind int

const (
	needed  kind = iota // it is part of the copy
	useless             // the server needs nothing of it, or makes it anew
	foreign             // it is not the server's, as far as is known: the operator is told
	strange             // it is the engine's, and not known: nothing is copied
)

// kindOf reports what becomes of a file by its name.
func (s Storage) kindOf(p string) kind {
	dir, name := path.Split(p)
	dir = strings.TrimSuffix(dir, "/")
	switch {
	case strings.HasSuffix(name, ".wt") && s.holdsTables(dir):
		return needed
	case dir == "":
		return kindAtTop(name)
	case dir == "journal":
		return kindInJournal(name)
	case throwaway(strings.Split(dir, "/")[0]):
		return useless
	}
	return foreign
}

func kindAtTop(name string) kind {
	switch name {
	case storageFile, "WiredTiger", "WiredTiger.turtle", "WiredTiger.backup", "WiredTiger.basecfg":
		return needed
	case "mongod.lock", "WiredTiger.lock", storageTemp,
		"WiredTiger.turtle.set": // becomes WiredTiger.turtle
		return useless
	}
	if strings.HasPrefix(name, "WiredTigerStat.") || strings.HasPrefix(name, "mongodb-") && strings.HasSuffix(name, ".sock") {
		return useless
	}
	if strings.HasPrefix(name, "WiredTiger") {
		return strange
	}
	return foreign
}

func kindInJournal(name string) kind {
	switch {
	case strings.HasPrefix(name, "WiredTigerLog."):
		return needed
	case strings.HasPrefix(name, "WiredTigerPreplog."), strings.HasPrefix(name, "WiredTigerTmplog."):
		return useless // prepared in advance, empty
	}
	return foreign
}

// holdsTables tells directories whose files *.wt are the engine's tables. With
// other options than those known here a server might keep them in any.
func (s Storage) holdsTables(dir string) bool {
	if dir == "" {
		return true
	}
	parts := strings.Split(dir, "/")
	if !scratchName(parts[0]) {
		return !slices.ContainsFunc(parts, neverTables)
	}
	if !s.DirectoryPerDB {
		return false
	}
	return len(parts) == 1 || s.DirectoryForIndexes && len(parts) == 2 && (parts[1] == "collection" || parts[1] == "index")
}

// entered tells directories that may hold what a copy needs, or what the operator
// is told of.
func (s Storage) entered(dir string) bool {
	parts := strings.Split(dir, "/")
	switch {
	case slices.ContainsFunc(parts, neverTables):
		return false
	case parts[0] == "journal" && len(parts) == 1, !scratchName(parts[0]):
		return true
	}
	return s.holdsTables(dir)
}

// scratchName tells directories of the server that are a database's as well if
// that has this name.
func scratchName(top string) bool { return top == "journal" || throwaway(top) }

// throwaway tells directories of the server of which a copy needs nothing but a
// database's tables.
func throwaway(top string) bool { return top == "_tmp" || top == "rollback" }

// neverTables tells directories that no database has: its name would have no dot,
// or not this letter.
func neverTables(name string) bool {
	switch name {
	case "diagnostic.data", "lost+found", keyStore, keyDB:
		return true
	}
	return false
}

// The keys of a member that is encrypted at rest, of MongoDB Enterprise and of
// Percona Server.
const (
	keyStore = "key.store"
	keyDB    = "key.db"
)
