package ycsb

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

func TestPropertiesFile(t *testing.T) {
	p := Properties{}
	err := p.Read(strings.NewReader("# comment\n! too\n\n  a = 1  \nb:2\nc 3\nlong=one,\\\n   " +
		"two\nempty\nurl=mongodb://h:1/d?w=1&x=y\nesc\\=aped=\\u0041\\tb\r\nlast=\\"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "1", "b": "2", "c": "3", "long": "one,two", "empty": "",
		"url":      "mongodb://h:1/d?w=1&x=y",
		"esc=aped": "A\tb", "last": ""} {
		if got, ok := p[name]; !ok || got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestCoreWorkloadsAreBuiltIn(t *testing.T) {
	want := map[string][kinds]float64{
		"a": {opRead: .5, opUpdate: .5}, "b": {opRead: .95, opUpdate: .05}, "c": {opRead: 1},
		"d": {opRead: .95, opInsert: .05},
		"e": {opScan: .95, opInsert: .05}, "f": {opRead: .5, opModify: .5},
	}
	for name, weights := range want {
		p := Properties{}
		if err := p.ReadFile("workloads/of/nowhere/workload" + name); err != nil {
			t.Fatal(err)
		}
		c, err := parse(p, Run)
		if err != nil {
			t.Fatal(err)
		}
		requests := "zipfian"
		if name == "d" {
			requests = "latest"
		}
		if c.weights != weights || c.requests != requests || c.records != 1000 || c.operations != 1000 {
			t.Errorf("workload %s: %+v", name, c)
		}
	}
	if err := (Properties{}).ReadFile("workloads/workloadx"); err == nil {
		t.Error("a file that is not there was read")
	}
}

func TestDefaults(t *testing.T) {
	c, err := parse(Properties{}, Run)
	if err != nil {
		t.Fatal(err)
	}
	if c.url != DefaultURL || c.database != "ycsb" || c.table != "usertable" || len(c.fields) != 10 ||
		c.fields[9] != "field9" ||
		c.fieldLength != numbers(constant(100)) || !c.readAll || c.writeAll || c.threads != 1 || c.requests != "uniform" ||
		c.scanLength != numbers(uniform{1, 1000}) || c.weights[opRead] != .95 || c.weights[opUpdate] != .05 || c.batch != 1 ||
		c.concern.W != 1 || c.statusEvery != 10*time.Second || c.measure.intended {
		t.Errorf("%+v", c)
	}
}

func TestDatabaseOfURL(t *testing.T) {
	for url, want := range map[string]string{
		"mongodb://h:1":                         "ycsb",
		"mongodb://h:1/":                        "ycsb",
		"mongodb://h:1/admin?replicaSet=a":      "ycsb",
		"mongodb://h:1/load?replicaSet=a":       "load",
		"mongodb://u:p%2F%40@h:1,i:2/a%20b?w=1": "a b",
		"mongodb://u:p@h:1/?authSource=a/b":     "ycsb",
		"localhost:27017":                       "ycsb",
	} {
		c, err := parse(Properties{"mongodb.url": url}, Run)
		if err != nil || c.database != want {
			t.Errorf("%s: database %v (%v), want %s", url, c, err, want)
		}
	}
}

func TestOldServerProperties(t *testing.T) {
	c, err := parse(Properties{"mongodb.writeConcern": "majority", "mongodb.readPreference": "secondary_preferred"}, Run)
	if err != nil || c.concern.W != "majority" || c.read.Mode().String() != "secondaryPreferred" {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = parse(Properties{"mongodb.url": "mongodb://h:1/x?w=2&readPreference=nearest",
		"mongodb.writeConcern": "majority", "mongodb.readPreference": "secondary"}, Run)
	if err != nil || c.concern.W != 2 || c.read.Mode().String() != "nearest" {
		t.Errorf("the address does not win: %+v, %v", c, err)
	}
}

func TestWrongProperties(t *testing.T) {
	for _, p := range []Properties{
		{"recordcount": "many"}, {"recordcount": "-1"}, {"recordcount": "0"}, {"requestdistribution": "zipf"},
		{"readproportion": "NaN"},
		{"readproportion": "0", "updateproportion": "0"}, {"recordcount": "10", "insertstart": "5", "insertcount": "6"},
		{"threadcount": "0"},
		{"workload": "site.ycsb.workloads.TimeSeriesWorkload"}, {"operationcount": "0"}, {"fieldlength": "999999999"},
		{"mongodb.url": "http://x"},
		{"fieldlengthdistribution": "histogram", "fieldlengthhistogram": "/not/there"}, {"measurementtype": "x"},
		{"hdrhistogram.percentiles": "95,x"},
		{"dataintegrity": "true", "fieldlengthdistribution": "uniform"}, {"exponential.percentile": "100"},
		{"hotspotdatafraction": "2"},
		{"insertorder": "random"}, {"exporter": "a.b.XML"}, {"mongodb.writeConcern": "some"},
		{"mongodb.readPreference": "any"}, {"fieldcount": "0"},
	} {
		if _, err := parse(p, Run); err == nil || mongo.HintOf(err) == "" {
			t.Errorf("%v: %v", p, err)
		}
	}
}

func TestSecretsStayOutOfErrors(t *testing.T) {
	_, err := parse(Properties{"mongodb.url": "mongodb://user:sesame@h:1/?w=wrong&tls=maybe"}, Run)
	if err == nil || strings.Contains(err.Error(), "sesame") {
		t.Errorf("error: %v", err)
	}
}

func TestUnlimitedOperations(t *testing.T) {
	c, err := parse(Properties{"operationcount": "0", "maxexecutiontime": "3"}, Run)
	if err != nil || c.operations != math.MaxInt64 || c.limit != 3*time.Second {
		t.Errorf("%+v, %v", c, err)
	}
}
