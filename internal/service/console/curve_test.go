package console

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestBegin: the chart of a young job begins with its points.
func TestBegin(t *testing.T) {
	to := time.Date(2026, 11, 29, 4, 0, 0, 0, time.UTC)
	from := to.Add(-time.Hour)
	for first, want := range map[time.Duration]time.Duration{
		2 * time.Minute: 5 * time.Minute, 20 * time.Minute: 20 * time.Minute, 3 * time.Hour: time.Hour,
	} {
		point := service.Bucket{Start: to.Add(-first)}
		if got := begin([]service.Bucket{point}, from, to); got != to.Add(-want) {
			t.Errorf("points since %v: the chart begins %v ago, want %v", first, to.Sub(got), want)
		}
	}
	if got := begin(nil, from, to); got != from {
		t.Errorf("without points the chart begins at %v", got)
	}
}
