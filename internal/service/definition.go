package service

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/pace"
)

// Definition is the desired job. It is changed by comparing revisions.
type Definition struct {
	// Name is the job's, here and on its target.
	Name string `json:"name"`
	// UID is another one each time a job of this name is made.
	UID string `json:"uid"`
	// Settings are those of `millrace sync`, as the YAML or JSON that was given, with references to secrets.
	Settings string `json:"settings"`
	// Labels are what a worker must have to run the job.
	Labels map[string]string `json:"labels,omitempty"`
	Wish   Wish              `json:"wish"`

	CreatedAt time.Time `json:"createdAt"`
	CreatedBy string    `json:"createdBy"`
	Stored
}

// Stored is part of what the store compares when it changes a value.
type Stored struct {
	// Revision is the store's, 0 of a value that was not stored.
	Revision uint64 `json:"-"`
}

// At returns the revision to read or set.
func (s *Stored) At() *uint64 { return &s.Revision }

// Wish is how the operator wants the job to go on. Whoever runs the job brings it there.
type Wish struct {
	// Paused keeps the job where it is.
	Paused bool `json:"paused"`
	// Finalize has the job end, as soon as it follows.
	Finalize bool `json:"finalize"`
	// Removed has the job forgotten, here and not on its target, once nobody runs it.
	Removed bool `json:"removed,omitempty"`
	// Try grows each time the operator wants a job that has failed to be tried again.
	Try int `json:"try,omitempty"`
	// Limits and Loads hold the job back where they are not nil; else its settings do.
	Limits *pace.Rates `json:"limits,omitempty"`
	Loads  *pace.Loads `json:"loads,omitempty"`
	// Verify has the job verified again and again while it follows; nil does not.
	Verify *VerifySchedule `json:"verify,omitempty"`
}

// maxName bounds a job's name, in bytes.
const maxName = 100

// CheckName checks a job's name: it is a key of the store and a part of paths.
func CheckName(name string) error {
	if len(name) > maxName || !regexp.MustCompile(`^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*$`).MatchString(name) {
		return fmt.Errorf("%q is no name of a job: want up to %d letters, digits, dashes and underlines, with dots between "+
			"them", name, maxName)
	}
	return nil
}

// MaxSettings bounds the settings of a job, in bytes.
const MaxSettings = 256 << 10

// Fits reports whether a worker with these labels may run the job.
func (d *Definition) Fits(labels map[string]string) bool {
	for k, v := range d.Labels {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// ParseLabels reads labels of the form key=value.
func ParseLabels(list []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, l := range list {
		k, v, ok := strings.Cut(l, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			return nil, fmt.Errorf("label %q: want key=value", l)
		}
		labels[k] = strings.TrimSpace(v)
	}
	return labels, nil
}
