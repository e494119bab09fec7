package ycsb

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"
)

// rawWriter writes each latency as a line "READ,milliseconds,microseconds",
// with a heading before the first of each series. It is safe for concurrent use.
type rawWriter struct {
	mu     sync.Mutex
	w      *bufio.Writer
	closer io.Closer
	headed [kinds][variants]bool
	line   []byte
	err    error
}

// newRawWriter writes to a file, or to w when there is none.
func newRawWriter(path string, w io.Writer) (*rawWriter, error) {
	if path == "" {
		return &rawWriter{w: bufio.NewWriterSize(w, 1<<16)}, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("write raw latencies: %w", err)
	}
	return &rawWriter{w: bufio.NewWriterSize(f, 1<<16), closer: f}, nil
}

func (w *rawWriter) write(s series, at time.Time, us int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	w.line = w.line[:0]
	if !w.headed[s.kind][s.variant] {
		w.headed[s.kind][s.variant] = true
		w.line = append(append(w.line, s.String()...), " latency raw data: op, timestamp(ms), latency(us)\n"...)
	}
	w.line = append(append(w.line, s.String()...), ',')
	w.line = append(strconv.AppendInt(w.line, at.UnixMilli(), 10), ',')
	w.line = append(strconv.AppendInt(w.line, us, 10), '\n')
	_, w.err = w.w.Write(w.line)
}

func (w *rawWriter) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := errors.Join(w.err, w.w.Flush())
	if w.closer != nil {
		err = errors.Join(err, w.closer.Close())
	}
	if err != nil {
		return fmt.Errorf("write raw latencies: %w", err)
	}
	return nil
}
