package service

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// The bounds of a repair.
const (
	MaxRepair      = 1000
	maxDocumentKey = 400
)

// RepairWish has a verification copy documents from the source again, and compare only them.
type RepairWish struct {
	// Of is the verification that has found them different.
	Of        string `json:"of"`
	Documents int    `json:"documents"`
}

// Repair is of a verification that repairs: what is asked for, and how far that is.
type Repair struct {
	RepairWish
	RepairProgress
}

// Repair is nil of a verification that repairs nothing.
func (v *Verification) Repair() *Repair {
	if v.Wish.Repair == nil {
		return nil
	}
	r := Repair{RepairWish: *v.Wish.Repair}
	if v.Report != nil && v.Report.Repair != nil {
		r.RepairProgress = *v.Report.Repair
	}
	return &r
}

// RepairDocument is a document that is to be repaired.
type RepairDocument struct {
	NS       string `json:"ns"`
	TargetNS string `json:"targetNs"`
	UUID     string `json:"uuid,omitempty"` // as DocumentDifference has it
	ID       string `json:"id"`             // as text
	Key      string `json:"key"`
	Kind     string `json:"kind"`
}

// RepairProgress is how far a repair is, in documents.
type RepairProgress struct {
	Written int `json:"written"` // to the target
	Deleted int `json:"deleted"` // from it
	Same    int `json:"same"`    // were as the source has them
	Refused int `json:"refused"`
}

// RepairedDocument is what has come of the repair of a document.
type RepairedDocument struct {
	NS       string `json:"ns"`
	TargetNS string `json:"targetNs"`
	ID       string `json:"id"` // extended JSON
	Kind     string `json:"kind"`
	Outcome  string `json:"outcome"`
	Why      string `json:"why,omitempty"`
}

// UUIDText is a collection's UUID in hex, "" for none.
func UUIDText(uuid bson.Binary) string { return hex.EncodeToString(uuid.Data) }

// CollectionUUID is the UUID that a text of UUIDText stands for; empty for "".
func CollectionUUID(text string) (uuid bson.Binary, err error) {
	if text == "" {
		return uuid, nil
	}
	raw, err := hex.DecodeString(text)
	if err == nil && len(raw) != 16 {
		err = fmt.Errorf("it has %d bytes", len(raw))
	}
	if err != nil {
		return uuid, fmt.Errorf("%.70q is not the UUID of a collection: %w", text, err)
	}
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: raw}, nil
}

// DocumentKey names the _id of a document exactly, "" where it is too long for that.
func DocumentKey(id bson.RawValue) string {
	if len(id.Value) > maxDocumentKey {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(bsonraw.AppendID(nil, bsonraw.FromRaw(id)))
}

// DocumentID is the _id that a key names.
func DocumentID(key string) (id bsonraw.ID, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(key)
	if err == nil && (len(raw) == 0 || len(raw) > maxDocumentKey+1) {
		err = fmt.Errorf("it has %d bytes", len(raw))
	}
	if err == nil {
		id = bsonraw.KeyID(string(raw))
		err = bsonraw.RawValue(id).Validate()
	}
	if err != nil {
		return id, fmt.Errorf("%.70q is no key of a document: %w", key, err)
	}
	return id, nil
}
