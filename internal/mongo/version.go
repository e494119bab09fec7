package mongo

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a server version, comparable by its parts.
type Version struct{ Major, Minor, Patch int }

// ParseVersion reads "6.0.5" or "6.0".
func ParseVersion(s string) (Version, error) {
	var v Version
	parts := strings.SplitN(strings.SplitN(s, "-", 2)[0], ".", 3)
	dst := []*int{&v.Major, &v.Minor, &v.Patch}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return v, fmt.Errorf("version %q: %w", s, err)
		}
		*dst[i] = n
	}
	return v, nil
}

// AtLeast reports v >= major.minor.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// String formats as "6.0.5".
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// Series returns the version without its patch.
func (v Version) Series() Version { return Version{Major: v.Major, Minor: v.Minor} }

// OlderThan reports a series before that of w.
func (v Version) OlderThan(w Version) bool { return !v.AtLeast(w.Major, w.Minor) }

// PreviousSeries returns the series whose files and feature compatibility a server accepts besides its own; zero
// if unknown.
func (v Version) PreviousSeries() Version {
	switch {
	case v.Major >= 6:
		return Version{Major: v.Major - 1}
	case v.Series() == Version{Major: 5}:
		return Version{Major: 4, Minor: 4}
	case v.Series() == Version{Major: 4, Minor: 4}:
		return Version{Major: 4, Minor: 2}
	}
	return Version{}
}

// Tested returns the oldest and newest series that millrace is tested with. An older server is refused.
func Tested() (oldest, newest Version) { return Version{Major: 4, Minor: 2}, Version{Major: 7} }
