package access

import "testing"

// TestPasswords runs a job with users and passwords whose characters mean
// something in a connection string.
func TestPasswords(t *testing.T) {
	log, err := job(t, shared.source.URI(), shared.target.URI())
	finished(t, log, err)
}

// TestCertificates runs a job with X.509 users.
func TestCertificates(t *testing.T) {
	log, err := job(t, shared.source.X509URI(), shared.target.X509URI())
	finished(t, log, err)
}

// finished fails the test unless a job ended well and the target is the same.
func finished(t *testing.T, log string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	for _, d := range same(t) {
		t.Error(d)
	}
	if t.Failed() {
		t.Log(log)
	}
}
