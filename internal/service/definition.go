// Package service has the types of a service of many jobs. hub stores them, worker runs jobs, api answers.
// Checkpoint and fence of a job are on its target: without these types no document is lost.
package service

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/pace"
)

// Definition is a desired job.
type Definition struct {
	Name string `json:"name"`
	// UID is unique among all jobs that ever had this name.
	UID string `json:"uid"`
	// Settings are those of `millrace sync`: the given YAML or JSON, with references to secrets.
	Settings string `json:"settings"`
	// Labels are required of a worker.
	Labels  map[string]string `json:"labels,omitempty"`
	Desired Desired           `json:"wish"`

	CreatedAt time.Time `json:"createdAt"`
	CreatedBy string    `json:"createdBy"`
	Stored
}

// Stored is embedded in values that the store changes by comparing revisions.
type Stored struct {
	// Revision is the store's; 0 if not stored.
	Revision uint64 `json:"-"`
}

// At returns the revision, to read or set.
func (s *Stored) At() *uint64 { return &s.Revision }

// Desired is the desired state of a job, to which its worker brings it.
type Desired struct {
	Paused bool `json:"paused"`
	// Finalize takes effect when the job follows.
	Finalize bool `json:"finalize"`
	// Removed deletes the definition once no worker runs the job. Data on the target stay.
	Removed bool `json:"removed,omitempty"`
	// Try grows when an operator resumes a failed job.
	Try int `json:"try,omitempty"`
	// Limits and Loads replace those of the settings unless they are nil.
	Limits *pace.Rates `json:"limits,omitempty"`
	Loads  *pace.Loads `json:"loads,omitempty"`
	// Verify is nil without scheduled verifications.
	Verify *VerifySchedule `json:"verify,omitempty"`
}

const maxName = 100

// CheckName checks a job's name, which is a key of the store and part of paths.
func CheckName(name string) error {
	if len(name) > maxName || !regexp.MustCompile(`^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*$`).MatchString(name) {
		return fmt.Errorf("%q is not a name of a job: want up to %d letters, digits, dashes and underlines, with dots "+
			"between them", name, maxName)
	}
	return nil
}

// MaxSettings is in bytes.
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

// LabelTexts returns labels as key=value, by key.
func LabelTexts(labels map[string]string) (list []string) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, k+"="+labels[k])
	}
	return list
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
