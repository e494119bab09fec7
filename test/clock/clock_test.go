package clock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// clockEnv has the test binary say what time it is, for each line that it reads.
const clockEnv = "MILLRACE_TEST_SAY_TIME"

func sayTime() {
	began, in := time.Now(), bufio.NewReader(os.Stdin)
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return
		}
		now := time.Now()
		fmt.Println(now.Unix(), int64(now.Sub(began)/time.Second))
	}
}

// TestClock: the wall clock of one process is set ahead, behind and right again. How long
// things take it measures as before.
func TestClock(t *testing.T) {
	if os.Getenv(clockEnv) != "" {
		sayTime()
		os.Exit(0)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestClock$")
	cmd.Env = append(os.Environ(), clockEnv+"=1")
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	c, err := Start(cmd)
	if errors.Is(err, ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(); _ = in.Close(); _ = cmd.Wait() }()
	answers := bufio.NewReader(out)
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		if err := c.Set(ahead); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		if _, err := io.WriteString(in, "?\n"); err != nil {
			t.Fatal(err)
		}
		var wall, passed int64
		if _, err := fmt.Fscanln(answers, &wall, &passed); err != nil {
			t.Fatal(err)
		}
		least, most := before.Add(ahead).Unix(), time.Now().Add(ahead).Unix()
		if wall < least || wall > most || passed < 0 || passed > 600 {
			t.Errorf("%s ahead: it is %d there, want %d to %d; %d seconds have passed", ahead, wall, least, most, passed)
		}
	}
}
