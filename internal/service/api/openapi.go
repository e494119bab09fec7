package api

import (
	"embed"
	"fmt"
)

//go:embed openapi.json
var files embed.FS //nolint:gochecknoglobals // embed has no other form

// document is the description of the API, in OpenAPI 3.1.
func document() ([]byte, error) {
	raw, err := files.ReadFile("openapi.json")
	if err != nil {
		return nil, fmt.Errorf("read the description of the API: %w", err)
	}
	return raw, nil
}
