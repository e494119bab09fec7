package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/millrace/millrace/internal/config"
)

// newLog logs to w as the settings say; they have been validated.
func newLog(w io.Writer, c config.Common) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// warnSecrets says which secrets others on this machine can see.
func warnSecrets(log *slog.Logger, o config.Origins, secrets map[string]string) {
	mode := func(path string) (uint32, error) {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		return uint32(info.Mode().Perm()), nil
	}
	for _, p := range config.Warnings(o, secrets, mode) {
		log.Warn(p.Setting+" "+p.What, "where", p.Where, "hint", p.How)
	}
}
