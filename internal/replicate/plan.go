package replicate

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
	Checks      []Check          `json:"checks"`
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

// Level is the outcome of a check.
type Level string

// The outcomes of a check.
const (
	LevelOK   Level = "ok"
	LevelWarn Level = "warn"
	LevelFail Level = "fail"
)

// Check is one line of the precheck.
type Check struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Failed reports whether any check forbids the job.
func (p *Plan) Failed() bool {
	for _, c := range p.Checks {
		if c.Level == LevelFail {
			return true
		}
	}
	return false
}
