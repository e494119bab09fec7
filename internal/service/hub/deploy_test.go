package hub

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats-server/v2/server"
)

// TestDeployedNATS: the configurations of NATS that are shipped are those of a node of
// three with JetStream, a secret and room enough.
func TestDeployedNATS(t *testing.T) {
	t.Setenv("NATS_NAME", "nats-1")
	t.Setenv("NATS_TOKEN", "t0ken")
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join("../../../deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	shipped := map[string]string{"nats.conf": read("nats/nats.conf")}
	for part := range strings.SplitSeq(read("kubernetes/millrace.yaml"), "\n---\n") {
		var m struct {
			Kind string
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(part), &m); err != nil {
			t.Fatal(err)
		}
		if m.Kind == "ConfigMap" {
			shipped["millrace.yaml"] = m.Data["nats.conf"]
		}
	}
	if len(shipped) != 2 {
		t.Fatal("the manifests have no configuration of NATS")
	}
	for name, text := range shipped {
		file := filepath.Join(t.TempDir(), "nats.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := server.ProcessConfigFile(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var hosts []string
		for _, r := range o.Routes {
			hosts = append(hosts, r.Hostname())
		}
		if o.ServerName != "nats-1" || o.Authorization != "t0ken" || !o.JetStream || o.JetStreamMaxStore < 2<<30 ||
			o.Cluster.Name == "" || o.Cluster.Port != 6222 || o.Port != 4222 || len(slices.Compact(hosts)) != 3 {
			t.Errorf("%s: %+v", name, o)
		}
		for _, h := range hosts { // the nodes are called so elsewhere, too
			if node := regexp.MustCompile(`^nats-\d`).FindString(h); node == "" ||
				!strings.Contains(read("compose.yaml")+read("kubernetes/millrace.yaml"), "nats://"+h+":4222") {
				t.Errorf("%s: nobody is told of the node %s", name, h)
			}
		}
	}
}
