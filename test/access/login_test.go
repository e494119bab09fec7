package access

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/workshop/lab"
)

// TestPasswords runs a job with users and passwords whose characters mean
// something in a connection string.
func TestPasswords(t *testing.T) {
	succeeds(t, shared.source.URI(), shared.target.URI())
}

// TestCertificates runs a job with X.509 users.
func TestCertificates(t *testing.T) {
	if shared.source.X509URI() == "" {
		t.Skip(lab.ErrNoTLS)
	}
	lab.Nightly(t)
	succeeds(t, shared.source.X509URI(), shared.target.X509URI())
}

// TestCompressors runs jobs with the compressors that servers know, and wants
// the documents to have gone through them.
func TestCompressors(t *testing.T) {
	lab.Nightly(t)
	for _, c := range []struct{ source, target string }{{"zstd", "snappy"}, {"zlib", "zlib"}} {
		t.Run(c.source+" to "+c.target, func(t *testing.T) {
			sent, received := sourceSide().compressed(t, c.source, "compressor", "bytesIn"),
				targetSide().compressed(t, c.target, "decompressor", "bytesOut")
			succeeds(t, shared.source.URI()+"&compressors="+c.source, shared.target.URI()+"&compressors="+c.target)
			sent = sourceSide().compressed(t, c.source, "compressor", "bytesIn") - sent
			received = targetSide().compressed(t, c.target, "decompressor", "bytesOut") - received
			if sent < bigBytes || received < bigBytes {
				t.Errorf("the source compressed %d bytes, the target received %d compressed, want %d each", sent, received,
					bigBytes)
			}
		})
	}
}

// compressed is a counter of a server: uncompressed bytes that went through a
// compressor.
func (s side) compressed(t *testing.T, name, direction, counter string) int64 {
	t.Helper()
	raw, err := s.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	n, ok := raw.Lookup("network", "compression", name, direction, counter).AsInt64OK()
	if !ok {
		t.Fatalf("the server does not tell how much %s compressed", name)
	}
	return n
}
