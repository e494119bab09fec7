package pace

import (
	"errors"
	"fmt"
	"slices"
)

// Load is how much a job may use one of its sides.
type Load string

// The loads, from the least to the most.
const (
	Low    Load = "low"    // one operation at a time, and a pause after each (Gate.Spare)
	Normal Load = "normal" // as many at once as there are workers
	Max    Load = "max"    // more workers, as far as that brings more
)

func (l Load) check() error {
	if slices.Contains([]Load{Low, Normal, Max}, l) {
		return nil
	}
	return fmt.Errorf("load %q is unknown; use %s, %s or %s", string(l), Low, Normal, Max)
}

// Loads are those of both sides of a job.
type Loads struct {
	Source Load `json:"sourceLoad"`
	Target Load `json:"targetLoad"`
}

// Check returns what is wrong with requested loads.
func (l Loads) Check() error { return errors.Join(l.Source.check(), l.Target.check()) }
