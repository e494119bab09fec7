package seed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
)

// TestTokenOfOthers: a token file that other users can read is refused, as serve does.
func TestTokenOfOthers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "token")
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o644: false, 0o620: false} {
		_ = os.Remove(name)
		if err := os.WriteFile(name, []byte(strings.Repeat("x", 32)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadToken(name); (err == nil) != ok || !ok && !strings.Contains(mongo.HintOf(err), "chmod 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}
