package seed

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	files "github.com/millrace/millrace/internal/seed"
	"github.com/millrace/millrace/test/kit"
)

// TestGuardianOutlivesItsParent: an agent that is killed the moment its guardian
// takes the lock reads nothing any more. The guardian lets go all the same.
func TestGuardianOutlivesItsParent(t *testing.T) {
	t.Parallel()
	g := newGround(t, "6.0", "rs:3")
	k := &killing{ground: g}
	cmd := exec.CommandContext(t.Context(), g.bin, "seed", "guard")
	in, err := cmd.StdinPipe()
	must(t, err)
	r, w, err := os.Pipe()
	must(t, err)
	cmd.Stdout = w
	must(t, cmd.Start())
	must(t, r.Close()) // nobody reads
	must(t, w.Close())
	must(t, json.NewEncoder(in).Encode(files.GuardRequest{URI: g.uri(), App: "guardian of a test", LimitSeconds: 120}))
	kit.Until(t, "the source is locked", k.locked)
	must(t, in.Close())
	kit.Until(t, "the source is let go", func() bool { return !k.locked() })
	_ = cmd.Wait()
}
