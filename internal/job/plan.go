package job

import "github.com/millrace/millrace/internal/precheck"

// Plan is what a job would do, and what stands in its way.
type Plan struct {
	Job         string           `json:"job"`
	Resumes     bool             `json:"resumes"` // an earlier checkpoint is continued
	ResumePhase Phase            `json:"resumePhase,omitempty"`
	Mode        Mode             `json:"mode"`
	Source      string           `json:"source"`
	SourceInfo  string           `json:"sourceInfo"` // e.g. "replica set src, 6.0.5, FCV 6.0"
	Target      string           `json:"target"`
	TargetInfo  string           `json:"targetInfo"`
	Collections []PlanCollection `json:"collections"`
	Checks      precheck.List    `json:"checks"`
}

// PlanCollection is one namespace of a plan.
type PlanCollection struct {
	Source  string `json:"source"`
	Target  string `json:"target"`
	Type    string `json:"type"`
	Docs    int64  `json:"docs"`
	Bytes   int64  `json:"bytes"`
	Indexes int    `json:"indexes"`
}
