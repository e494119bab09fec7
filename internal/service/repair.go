package service

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

const (
	// MaxRepair bounds the documents of a repair.
	MaxRepair      = 1000
	maxDocumentKey = 400
)

// RepairRequest asks a verification to copy documents from the source again, and to compare only these.
type RepairRequest struct {
	// Of is the verification that found them.
	Of        string `json:"of"`
	Documents int    `json:"documents"`
}

type Repair struct {
	RepairRequest
	RepairProgress
}

// Repair returns nil for a verification without a repair.
func (v *Verification) Repair() *Repair {
	if v.Request.Repair == nil {
		return nil
	}
	r := Repair{RepairRequest: *v.Request.Repair}
	if v.Report != nil && v.Report.Repair != nil {
		r.RepairProgress = *v.Report.Repair
	}
	return &r
}

// RepairDocument is a document that differs, and may be repaired.
type RepairDocument struct {
	NS       string `json:"ns"`
	TargetNS string `json:"targetNs"`
	// UUID is the source collection's in hex, "" for none. A repair rejects another collection.
	UUID string `json:"uuid,omitempty"`
	ID   string `json:"id"` // extended JSON
	// Key names the document for a repair, "" if that is impossible.
	Key  string `json:"key,omitempty"`
	Kind string `json:"kind"`
}

// RepairProgress counts documents.
type RepairProgress struct {
	Written int `json:"written"`
	Deleted int `json:"deleted"` // from the target
	Same    int `json:"same"`    // were equal
	Refused int `json:"refused"`
}

type RepairedDocument struct {
	NS       string `json:"ns"`
	TargetNS string `json:"targetNs"`
	ID       string `json:"id"` // extended JSON
	Kind     string `json:"kind"`
	Outcome  string `json:"outcome"`
	Why      string `json:"why,omitempty"`
}

// UUIDText returns a UUID in hex, "" for none.
func UUIDText(uuid bson.Binary) string { return hex.EncodeToString(uuid.Data) }

// CollectionUUID reads a text of UUIDText.
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

// DocumentKey names an _id exactly, "" if it is too long.
func DocumentKey(id bson.RawValue) string {
	if len(id.Value) > maxDocumentKey {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(bsonraw.AppendID(nil, bsonraw.FromRaw(id)))
}

// DocumentID reads a key of DocumentKey.
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
		return id, fmt.Errorf("%.70q is not a key of a document: %w", key, err)
	}
	return id, nil
}
