package clock

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the wall clock of one process, which a test may set. The clock by which that
// process measures how long things take goes on as it is, and so do those of all other
// processes, also of those that it starts.
//
// Programs read clocks in code that the kernel maps into each of them (the vDSO). The
// process is stopped (ptrace) when it begins, its own copy of that code is replaced by
// one that asks the kernel and adds seconds to what that says of the wall clock, and it
// goes on untraced. To set the clock is to write those seconds into its memory.
type Clock struct {
	mem *os.File // the memory of the process
	at  int64    // where the seconds are
}

// Start starts a command whose wall clock can be set. Where that is not possible
// nothing runs, and the error is ErrNone.
func Start(cmd *exec.Cmd) (c *Clock, err error) {
	done := make(chan struct{})
	go func() { // the kernel has the thread that starts a process trace it
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c, err = start(cmd)
	}()
	<-done
	return c, err
}

func start(cmd *exec.Cmd) (*Clock, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("clock: start %s with a clock of its own: %w", cmd.Path, err)
	}
	pid := cmd.Process.Pid
	c, err := newClock(pid)
	if err == nil {
		if err = unix.PtraceDetach(pid); err == nil {
			return c, nil
		}
		_ = c.Close()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return nil, fmt.Errorf("%w: %w", ErrNone, err)
}

// newClock replaces the code of a process that has stopped before its first instruction.
func newClock(pid int) (_ *Clock, err error) {
	var state unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &state, 0, nil); err == nil {
			break
		} else if !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("wait for its start: %w", err)
		}
	}
	if !state.Stopped() {
		return nil, fmt.Errorf("it has not stopped at its start: %v", state)
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	mem, err := os.OpenFile(filepath.Join(dir, "mem"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = mem.Close()
		}
	}()
	base, err := vdso(dir)
	if err != nil {
		return nil, err
	}
	// Its last pages are not read: what names its functions is before them.
	image := make([]byte, 2*os.Getpagesize())
	if n, err := mem.ReadAt(image, base); err != nil && n < os.Getpagesize() {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	at, err := clockCode(image)
	if err != nil {
		return nil, err
	}
	code := shiftedClock()
	if _, err := mem.WriteAt(code, base+at); err != nil {
		return nil, fmt.Errorf("write to the vDSO: %w", err)
	}
	return &Clock{mem: mem, at: base + at + int64(len(code)) - 8}, nil
}

// vdso is where the vDSO of a process begins.
func vdso(dir string) (int64, error) {
	const atSysinfoEHDR = 33 // the kernel's uapi/linux/auxvec.h, arch/x86
	raw, err := os.ReadFile(filepath.Join(dir, "auxv"))
	if err != nil {
		return 0, err
	}
	for pair := range slices.Chunk(raw, 16) {
		if len(pair) == 16 && binary.LittleEndian.Uint64(pair) == atSysinfoEHDR {
			return int64(binary.LittleEndian.Uint64(pair[8:])), nil
		}
	}
	return 0, errors.New("the kernel gives it no vDSO")
}

// clockCode is where clock_gettime is in a vDSO.
func clockCode(image []byte) (int64, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, fmt.Errorf("read the vDSO: %w", err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("read the names in the vDSO: %w", err)
	}
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "__vdso_clock_gettime" })
	if i < 0 || symbols[i].Value%8 != 0 || symbols[i].Size < uint64(len(shiftedClock())) {
		return 0, errors.New("the vDSO has no clock_gettime with room for another")
	}
	return int64(symbols[i].Value), nil
}

// shiftedClock is clock_gettime as machine code, with the seconds at its end.
func shiftedClock() []byte {
	return []byte{
		0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, 228 (clock_gettime)
		0x0f, 0x05, //                   syscall
		0x85, 0xc0, //                   test eax, eax
		0x75, 0x13, //                   jne end
		0x85, 0xff, //                   test edi, edi (CLOCK_REALTIME)
		0x74, 0x05, //                   je shift
		0x83, 0xff, 0x05, //             cmp edi, 5 (CLOCK_REALTIME_COARSE)
		0x75, 0x0a, //                   jne end
		0x48, 0x8b, 0x0d, 0x05, 0, 0, 0, // shift: mov rcx, [seconds]
		0x48, 0x01, 0x0e, //             add [rsi], rcx
		0xc3,                   //                         end: ret
		0x90,                   //
		0, 0, 0, 0, 0, 0, 0, 0, // seconds
	}
}

// Set has the clock go so many seconds ahead of the machine's, or behind.
func (c *Clock) Set(ahead time.Duration) error {
	seconds := binary.LittleEndian.AppendUint64(nil, uint64(int64(ahead/time.Second)))
	if _, err := c.mem.WriteAt(seconds, c.at); err != nil {
		return fmt.Errorf("clock: set the clock of a process: %w", err)
	}
	return nil
}

// Close leaves the clock as it is.
func (c *Clock) Close() error { return c.mem.Close() }
