package seed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/spawn"
)

// CheckMember adds to a plan what is known of the new member before anything is
// copied: its directory, and the mongod that is to be started on it.
func CheckMember(ctx context.Context, p *Plan, o Options) {
	p.checkTarget(ctx, o)
	p.checkPrograms(ctx, o)
}

// checkPrograms looks at what is to run on the copy.
func (p *Plan) checkPrograms(ctx context.Context, o Options) {
	if role := p.Origin.ClusterRole; role != "" && o.Member.NewSet != "" {
		err := partOfCluster(role)
		p.add(precheck.Fail, "cluster role", err.Error(), mongo.HintOf(err))
		return
	}
	if len(o.Member.Command) > 0 {
		p.checkCommand(ctx, o)
	}
	if o.Member.NewSet != "" && (o.Member.Mongod != "" || len(o.Member.Command) == 0) {
		p.checkVersion(ctx, []string{o.Member.mongod()})
	}
}

// checkTarget looks whether the directory may be used and has room.
func (p *Plan) checkTarget(ctx context.Context, o Options) {
	var there int64
	dir, replace := o.Pull.DBPath, (func(context.Context, *os.Root) error)(nil)
	if o.Member.Replace != "" {
		var err error
		if replace, err = o.Member.replacing(ctx, dir, false); err != nil {
			p.add(precheck.Fail, "member to replace", err.Error(), mongo.HintOf(err))
			return
		}
	}
	if root, err := os.OpenRoot(dir); err == nil {
		defer root.Close()
		_, err := claim(root)
		if errors.Is(err, errNotEmpty) && replace != nil {
			err = errors.Join(checkFree(root), replace(ctx, root))
		}
		if err != nil {
			p.add(precheck.Fail, "target directory", err.Error(), mongo.HintOf(err))
			return
		}
		files, _ := listCopy(root) // a directory that cannot be listed holds nothing to use again
		for _, f := range files {
			there += f.Size
		}
	}
	free, err := freeBytes(existing(dir))
	if err != nil {
		return // the copy looks again
	}
	if need := p.Bytes - there; free < need+need/50 {
		p.add(precheck.Fail, "free space", fmt.Sprintf("the copy needs %s, %s has %s free", humanize.Bytes(uint64(need)), dir,
			humanize.Bytes(uint64(free))), "make room, or choose another directory")
	}
}

// existing is a directory, or the nearest one above that is there.
func existing(dir string) string {
	dir, err := filepath.Abs(dir)
	for err == nil {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// mongodConfig is what a mongod says of its options.
type mongodConfig struct {
	Net struct {
		Port int `yaml:"port"` // 0 is the default
	} `yaml:"net"`
	Storage struct {
		DBPath         string `yaml:"dbPath"`
		Engine         string `yaml:"engine"`
		DirectoryPerDB bool   `yaml:"directoryPerDB"`
		WiredTiger     struct {
			EngineConfig struct {
				DirectoryForIndexes bool `yaml:"directoryForIndexes"`
			} `yaml:"engineConfig"`
			CollectionConfig struct {
				BlockCompressor string `yaml:"blockCompressor"`
			} `yaml:"collectionConfig"`
		} `yaml:"wiredTiger"`
	} `yaml:"storage"`
	Replication struct {
		ReplSet     string `yaml:"replSet"` // as a flag
		ReplSetName string `yaml:"replSetName"`
	} `yaml:"replication"`
	Sharding struct {
		ClusterRole string `yaml:"clusterRole"`
	} `yaml:"sharding"`
	Security struct {
		EnableEncryption bool `yaml:"enableEncryption"`
	} `yaml:"security"`
}

// program is the part of a command up to the mongod, which is asked; what comes
// before, such as numactl, belongs to it. It is nil if no mongod is to be seen.
func program(command []string) []string {
	named := regexp.MustCompile(`^mongod([-_.]?[0-9.]+)?$`)
	i := slices.IndexFunc(command, func(s string) bool { return named.MatchString(filepath.Base(s)) })
	if i < 0 {
		return nil
	}
	return command[:i+1]
}

// ask runs a mongod that only answers a question.
func ask(ctx context.Context, command []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := spawn.CommandContext(ctx, command[0], command[1:]...).Output()
	return string(out), err
}

// checkCommand compares the mongod that is to be started with the source.
func (p *Plan) checkCommand(ctx context.Context, o Options) {
	head := program(o.Member.Command)
	if head == nil {
		p.add(precheck.Warn, "start command",
			"no mongod is to be seen in it, so that its version and options are not compared", "see that both are the source's")
		return
	}
	if !p.checkVersion(ctx, head) {
		return
	}
	c, err := configOf(ctx, o.Member.Command)
	if err != nil { // its text may hold secrets
		p.add(precheck.Warn, "start command", "the mongod does not tell its options, so that they are not compared",
			"see that it starts with them, and that they are the source's")
		return
	}
	p.compare(c, o)
}

// configOf is what the mongod of a command itself puts together of its flags and
// files of options.
func configOf(ctx context.Context, command []string) (c mongodConfig, err error) {
	out, err := ask(ctx, append(slices.Clone(command), "--outputConfig"))
	if err == nil {
		err = yaml.Unmarshal([]byte(out), &c)
	}
	return c, err
}

// port is where it will listen.
func (c mongodConfig) port() string {
	if c.Net.Port == 0 {
		return "27017"
	}
	return strconv.Itoa(c.Net.Port)
}

func (p *Plan) compare(c mongodConfig, o Options) {
	const name = "start command"
	if _, port, err := net.SplitHostPort(o.Member.Replace); err == nil && port != c.port() {
		p.add(precheck.Fail, name, fmt.Sprintf("its port is %s, that of the member is %s", c.port(), port),
			"give --port "+port+" after --")
	}
	if dir := c.Storage.DBPath; !sameDirectory(dir, o.Pull.DBPath) {
		p.add(precheck.Fail, name, fmt.Sprintf("its dbPath is %q, the copy goes to %q", dir, o.Pull.DBPath),
			"give --dbpath of the new directory after --")
	}
	if e := c.Storage.Engine; e != "" && e != "wiredTiger" {
		p.add(precheck.Fail, name, fmt.Sprintf("its storage engine is %q", e), "the files are WiredTiger's")
	}
	if c.Security.EnableEncryption {
		p.add(precheck.Fail, name, "it encrypts its files, the source does not", "leave out --enableEncryption")
	}
	// As a primary it would take writes of routers that know old chunks.
	if was, is := p.Origin.ClusterRole, c.Sharding.ClusterRole; was != "" && is != was {
		p.add(precheck.Fail, name, fmt.Sprintf("its cluster role is %q, the source's is %q", is, was),
			"give --"+was+" after --")
	}
	s := p.Origin.Storage
	p.same("directoryPerDB", s.DirectoryPerDB, c.Storage.DirectoryPerDB, "--directoryperdb")
	p.same("directoryForIndexes", s.DirectoryForIndexes, c.Storage.WiredTiger.EngineConfig.DirectoryForIndexes,
		"--wiredTigerDirectoryForIndexes")
	if a, b := compressor(s.Compressor), compressor(c.Storage.WiredTiger.CollectionConfig.BlockCompressor); a != b &&
		p.Origin.State != "stopped" {
		p.add(precheck.Warn, name, fmt.Sprintf("new collections are compressed with %s, on the source with %s", b, a),
			"what is copied stays readable; give --wiredTigerCollectionBlockCompressor "+a+" for the same")
	}
	set, _, _ := strings.Cut(c.Replication.ReplSet+c.Replication.ReplSetName, "/")
	want := p.Origin.SetName
	if o.Member.NewSet != "" {
		want = o.Member.NewSet
	}
	if set == "" || want != "" && set != want {
		p.add(precheck.Fail, name, fmt.Sprintf("its replica set is %q, not %q", set, want),
			"give --replSet "+want+" after --")
	}
}

// same compares an option with which files were laid out: a mongod with another
// one does not start.
func (p *Plan) same(option string, source, started bool, flag string) {
	if source == started {
		return
	}
	hint := "leave out " + flag
	if source {
		hint = "add " + flag
	}
	p.add(precheck.Fail, "start command",
		fmt.Sprintf("%s is %v, the source's files were made with %v", option, started, source), hint)
}

func compressor(s string) string {
	if s == "" {
		return "snappy" // since 3.0
	}
	return s
}

func sameDirectory(a, b string) bool {
	if a == "" {
		return false
	}
	resolved := func(s string) string {
		abs, err := filepath.Abs(s)
		if err != nil {
			return s
		}
		if real, err := filepath.EvalSymlinks(abs); err == nil {
			return real
		}
		return abs
	}
	return resolved(a) == resolved(b)
}

// checkVersion compares a mongod's version with the source's; it reports
// whether the program answers at all.
func (p *Plan) checkVersion(ctx context.Context, program []string) bool {
	const name = "version"
	out, err := ask(ctx, append(slices.Clone(program), "--version"))
	var started mongo.Version
	version := versionIn(out)
	if err == nil {
		started, err = mongo.ParseVersion(version)
	}
	if err != nil {
		p.add(precheck.Warn, name, program[len(program)-1]+" does not tell its version",
			"see that it can be started, and is of the source's version")
		return false
	}
	source, err := mongo.ParseVersion(p.Origin.Version)
	if err != nil {
		p.add(precheck.Warn, name, "the version of a source without address is not known; the new member's is "+version,
			"see that they are the same")
		return true
	}
	fcv, err := mongo.ParseVersion(p.Origin.FCV)
	known := err == nil
	switch {
	case started.Series() == source.Series():
	case started.OlderThan(source):
		p.add(precheck.Fail, name, fmt.Sprintf("the new member's mongod is %s, the source's %s", version, p.Origin.Version),
			"start a mongod of the source's version; files are not read by older ones")
	case known && (fcv == started.Series() || fcv == started.PreviousSeries()):
		p.add(precheck.Warn, name, fmt.Sprintf("the new member's mongod is %s, newer than the source's %s", version,
			p.Origin.Version), "members may differ during an upgrade only")
	default:
		p.add(precheck.Fail, name,
			fmt.Sprintf("the new member's mongod is %s, too new for the source's %s with feature compatibility %q", version,
				p.Origin.Version, p.Origin.FCV),
			"start a mongod of the source's version")
	}
	return true
}

// versionIn finds the version in what mongod --version says.
func versionIn(out string) string {
	m := regexp.MustCompile(`(?m)^db version v(\d+\.\d+\S*)`).FindStringSubmatch(out)
	if m == nil {
		return ""
	}
	return m[1]
}
