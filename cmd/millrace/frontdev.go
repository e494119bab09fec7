package main

import (
	"net/http"

	"github.com/millrace/millrace/internal/config"
)

func (r *session) frontHandler(_ *config.Serve, _ *front) (http.Handler, error) {
	return http.NewServeMux(), nil
}
