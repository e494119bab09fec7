package seed

import (
	"cmp"
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

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/spawn"
)

// CheckMember adds to a plan the checks of the new member's directory and its mongod.
func CheckMember(ctx context.Context, p *Plan, o Options) {
	p.checkTarget(ctx, o)
	p.checkPrograms(ctx, o)
}

func (p *Plan) checkPrograms(ctx context.Context, o Options) {
	if role := p.Origin.ClusterRole; role != "" && o.Member.NewSet != "" {
		p.failBy("cluster role", partOfCluster(role))
		return
	}
	if len(o.Member.Command) > 0 {
		p.checkCommand(ctx, o)
	}
	if o.Member.NewSet != "" && (o.Member.Mongod != "" || len(o.Member.Command) == 0) {
		p.checkVersion(ctx, []string{o.Member.mongod()})
	}
}

func (p *Plan) checkTarget(ctx context.Context, o Options) {
	var there int64
	dir, replace := o.Pull.DBPath, (func(context.Context, *os.Root) error)(nil)
	if o.Member.Replace != "" {
		var err error
		if replace, err = o.Member.replacing(ctx, dir, false); err != nil {
			p.failBy("member to replace", err)
			return
		}
	}
	if root, err := os.OpenRoot(dir); err == nil {
		defer root.Close()
		_, err := claim(root, o.Member.NewSet == "")
		if errors.Is(err, errNotEmpty) && replace != nil {
			err = errors.Join(checkFree(root), replace(ctx, root))
		}
		if err != nil {
			p.failBy("target directory", err)
			return
		}
		files, _ := listCopy(root) // after an error nothing is used again
		for _, f := range files {
			there += f.Size
		}
	}
	if err := checkRoom(dir, p.Bytes-there); err != nil {
		p.failBy("free space", err)
	}
}

// existing returns dir, or the nearest directory above that exists.
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

// program returns a command up to the mongod, with what comes before, such as numactl; nil without a mongod.
func program(command []string) []string {
	named := regexp.MustCompile(`^mongod([-_.]?[0-9.]+)?$`)
	i := slices.IndexFunc(command, func(s string) bool { return named.MatchString(filepath.Base(s)) })
	if i < 0 {
		return nil
	}
	return command[:i+1]
}

func outputOf(ctx context.Context, command []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := spawn.CommandContext(ctx, command[0], command[1:]...).Output()
	return string(out), err
}

func (p *Plan) checkCommand(ctx context.Context, o Options) {
	head := program(o.Member.Command)
	if head == nil {
		p.warn("start command",
			"no mongod is to be seen in it: its version and options are not compared", "check that both are the source's")
		return
	}
	if !p.checkVersion(ctx, head) {
		return
	}
	c, err := configOf(ctx, o.Member.Command)
	if err != nil { // its text may hold secrets
		p.warn("start command", "the mongod does not print its options, so that they are not compared",
			"check that it starts with them, and that they are the source's")
		return
	}
	p.compare(c, o)
}

func configOf(ctx context.Context, command []string) (c mongodConfig, err error) {
	out, err := outputOf(ctx, append(slices.Clone(command), "--outputConfig"))
	if err == nil {
		err = yaml.Unmarshal([]byte(out), &c)
	}
	return c, err
}

func (c mongodConfig) port() string { return strconv.Itoa(cmp.Or(c.Net.Port, 27017)) }

func (p *Plan) failBy(name string, err error) { p.fail(name, err.Error(), mongo.HintOf(err)) }

func (p *Plan) compare(c mongodConfig, o Options) {
	const name = "start command"
	if _, port, err := net.SplitHostPort(o.Member.Replace); err == nil && port != c.port() {
		p.fail(name, fmt.Sprintf("its port is %s, that of the member is %s", c.port(), port), "give --port "+port+" after --")
	}
	if dir := c.Storage.DBPath; !sameDirectory(dir, o.Pull.DBPath) {
		p.fail(name, fmt.Sprintf("its dbPath is %q, the copy goes to %q", dir, o.Pull.DBPath),
			"give --dbpath of the new directory after --")
	}
	if e := c.Storage.Engine; e != "" && e != "wiredTiger" {
		p.fail(name, fmt.Sprintf("its storage engine is %q", e), "the files are WiredTiger's")
	}
	if c.Security.EnableEncryption {
		p.fail(name, "it encrypts its files, the source does not", "leave out --enableEncryption")
	}
	// As a primary it would take writes of routers that know old chunks.
	if was, is := p.Origin.ClusterRole, c.Sharding.ClusterRole; was != "" && is != was {
		p.fail(name, fmt.Sprintf("its cluster role is %q, the source's is %q", is, was), "give --"+was+" after --")
	}
	s := p.Origin.Storage
	wt := c.Storage.WiredTiger
	p.same("directoryPerDB", s.DirectoryPerDB, c.Storage.DirectoryPerDB, "--directoryperdb")
	p.same("directoryForIndexes", s.DirectoryForIndexes, wt.EngineConfig.DirectoryForIndexes,
		"--wiredTigerDirectoryForIndexes")
	const compressor = "snappy" // the default since 3.0
	a, b := cmp.Or(s.Compressor, compressor), cmp.Or(wt.CollectionConfig.BlockCompressor, compressor)
	if a != b && p.Origin.State != "stopped" {
		p.warn(name, fmt.Sprintf("new collections are compressed with %s, on the source with %s", b, a),
			"what is copied stays readable; give --wiredTigerCollectionBlockCompressor "+a+" for the same")
	}
	set, _, _ := strings.Cut(c.Replication.ReplSet+c.Replication.ReplSetName, "/")
	want := cmp.Or(o.Member.NewSet, p.Origin.SetName)
	if set == "" || want != "" && set != want {
		p.fail(name, fmt.Sprintf("its replica set is %q, not %q", set, want), "give --replSet "+want+" after --")
	}
}

// same compares an option that decides the layout of files.
func (p *Plan) same(option string, source, started bool, flag string) {
	if source == started {
		return
	}
	hint := "leave out " + flag
	if source {
		hint = "add " + flag
	}
	p.fail("start command", fmt.Sprintf("%s is %v, the source's files were made with %v", option, started, source), hint)
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

func versionOf(ctx context.Context, program []string) (v mongo.Version, err error) {
	out, err := outputOf(ctx, append(slices.Clone(program), "--version"))
	if err != nil {
		return v, err
	}
	version := ""
	if m := regexp.MustCompile(`(?m)^db version v(\d+\.\d+\S*)`).FindStringSubmatch(out); m != nil {
		version = m[1]
	}
	return mongo.ParseVersion(version)
}

// checkVersion compares versions; it is false if the program does not tell its own.
func (p *Plan) checkVersion(ctx context.Context, program []string) bool {
	const name = "version"
	started, err := versionOf(ctx, program)
	version := started.String()
	if err != nil {
		p.warn(name, program[len(program)-1]+" does not tell its version",
			"see that it can be started, and is of the source's version")
		return false
	}
	source, err := mongo.ParseVersion(p.Origin.Version)
	if err != nil {
		p.warn(name, "the version of a source without address is not known; the new member's is "+version,
			"see that they are the same")
		return true
	}
	fcv, err := mongo.ParseVersion(p.Origin.FCV)
	switch {
	case started.Series() == source.Series():
	case started.OlderThan(source):
		p.fail(name, fmt.Sprintf("the new member's mongod is %s, the source's %s", version, p.Origin.Version),
			"start a mongod of the source's version; files are not read by older ones")
	case err == nil && (fcv == started.Series() || fcv == started.PreviousSeries()):
		p.warn(name, fmt.Sprintf("the new member's mongod is %s, newer than the source's %s", version,
			p.Origin.Version), "members may differ during an upgrade only")
	default:
		p.fail(name,
			fmt.Sprintf("the new member's mongod is %s, too new for the source's %s with feature compatibility %q", version,
				p.Origin.Version, p.Origin.FCV),
			"start a mongod of the source's version")
	}
	return true
}

// checkSeries rejects a mongod of another series or an older patch level than the source's: nothing tells what either
// makes of the source's files.
func (p *Plan) checkSeries(ctx context.Context, o Options) {
	own, err := versionOf(ctx, []string{o.Member.mongod()})
	source, unknown := mongo.ParseVersion(p.Origin.Version)
	if err == nil && unknown == nil && (own.Series() != source.Series() || own.Patch < source.Patch) {
		p.fail("version", fmt.Sprintf("the new member's mongod is %s, the source's %s", own, p.Origin.Version),
			"use the source's series, with its patch level or a newer one; upgrade the new set when it is finalized")
	}
}
