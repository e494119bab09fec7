package main

import (
	"fmt"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/shown"
)

// structure adds what a job has made that copies no documents.
func (t facts) structure(s *job.StructureStatus) {
	t.add("collections made", ofAll(s.Collections, s.CollectionsTotal))
	t.add("views made", ofAll(s.Views, s.ViewsTotal))
	t.add("indexes built", ofAll(s.Indexes, s.IndexesTotal))
	if s.Sharded > 0 {
		t.add("collections sharded", s.Sharded)
	}
}

// ofAll is how many of all there are.
func ofAll(n, all int) string {
	if n == all {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d of %d", n, all)
}

// structure shows what is made.
func (v *viewer) structure() {
	s := v.s.Structure
	all, done := s.CollectionsTotal+s.ViewsTotal+s.IndexesTotal, s.Collections+s.Views+s.Indexes
	v.add(label("made")+v.bar(shown.Share(int64(done), int64(all), v.s.Phase == job.PhaseFinalized)), ofAll(s.Collections, s.CollectionsTotal)+" collections",
		ofAll(s.Views, s.ViewsTotal)+" views", ofAll(s.Indexes, s.IndexesTotal)+" indexes")
}
