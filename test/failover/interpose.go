package failover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Blow is what becomes of one command.
type Blow struct {
	Name string
	// Before strikes the command before the server has it, else its reply is struck.
	Before bool
	// Code is answered in place of the server's reply; 0 closes the connection.
	Code int32
	// Do, if any, is done first.
	Do func()
}

// Interposer passes commands on to a server, counts them and strikes one. It knows commands
// that are not compressed.
type Interposer struct {
	listener net.Listener
	upstream string
	serving  sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool
	counts  bool // commands are counted
	at      int  // the command to strike, from 1; 0 is none
	blow    Blow
	seen    []string // the names of the commands that were counted
	struck  string
	removed bool
}

// Interpose listens before a server. Close ends it.
func Interpose(upstream string) (*Interposer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // ended by Close
	if err != nil {
		return nil, err
	}
	in := &Interposer{listener: l, upstream: upstream, conns: map[net.Conn]bool{}}
	in.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			in.serving.Go(func() { in.serve(conn) })
		}
	})
	return in, nil
}

// Addr is where it listens.
func (in *Interposer) Addr() string { return in.listener.Addr().String() }

// Close ends all connections and waits for what serves them.
func (in *Interposer) Close() error {
	err := in.listener.Close()
	in.mu.Lock()
	in.removed = true
	for conn := range in.conns {
		_ = conn.Close()
	}
	in.mu.Unlock()
	in.serving.Wait()
	return err
}

// Arm begins to count commands, and strikes one of them by its number.
func (in *Interposer) Arm(at int, blow Blow) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.counts, in.at, in.blow, in.seen, in.struck = true, at, blow, nil, ""
}

// Disarm ends that. It returns the commands that were counted, and the one that was struck.
func (in *Interposer) Disarm() (seen []string, struck string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.counts = false
	return in.seen, in.struck
}

// keep notes a connection that Close ends.
func (in *Interposer) keep(conn net.Conn) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.conns[conn] = true
	return !in.removed
}

func (in *Interposer) forget(conn net.Conn) {
	_ = conn.Close()
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.conns, conn)
}

func (in *Interposer) serve(conn net.Conn) {
	defer in.forget(conn)
	far, err := net.Dial("tcp", in.upstream) //nolint:noctx // ended by Close
	if err != nil {
		return
	}
	defer in.forget(far)
	if !in.keep(conn) || !in.keep(far) {
		return
	}
	for err == nil {
		err = in.exchange(conn, far)
	}
}

// errStruck ends a connection.
var errStruck = errors.New("struck")

// exchange passes one command and its reply, or the replies of a stream.
func (in *Interposer) exchange(conn, far net.Conn) error {
	command, err := readMessage(conn)
	if err != nil {
		return err
	}
	blow, strikes := in.count(command)
	if strikes && blow.Do != nil && blow.Before {
		blow.Do()
	}
	if strikes && blow.Before {
		return refuse(conn, command, blow.Code)
	}
	if _, err := far.Write(command); err != nil || more(command) {
		return err
	}
	for {
		reply, err := readMessage(far)
		if err != nil {
			return err
		}
		if strikes {
			if blow.Do != nil {
				blow.Do()
			}
			return refuse(conn, command, blow.Code)
		}
		if _, err := conn.Write(reply); err != nil || !more(reply) {
			return err
		}
	}
}

// count counts a command, but for those that only ask who is there.
func (in *Interposer) count(command []byte) (Blow, bool) {
	name := commandName(command)
	switch name {
	case "", "hello", "isMaster", "ismaster", "ping", "endSessions":
		return Blow{}, false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.counts {
		return Blow{}, false
	}
	in.seen = append(in.seen, name)
	if len(in.seen) != in.at {
		return Blow{}, false
	}
	in.struck = name
	return in.blow, true
}

// Offsets in a message of the wire protocol, and what stands there.
const (
	atRequest, atOp, atFlags, atBody = 4, 12, 16, 21
	opMsg, moreToCome                = 2013, 2
)

func readMessage(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	m := make([]byte, max(binary.LittleEndian.Uint32(size[:]), atBody))
	copy(m, size[:])
	_, err := io.ReadFull(r, m[len(size):])
	return m, err
}

func isMsg(m []byte) bool { return binary.LittleEndian.Uint32(m[atOp:]) == opMsg }

// more says that no reply follows, or another one.
func more(m []byte) bool {
	return isMsg(m) && binary.LittleEndian.Uint32(m[atFlags:])&moreToCome != 0
}

// commandName is the first field of a command, "" of what is none.
func commandName(m []byte) string {
	const header = 5 // the length of the document and the type of its first field
	if !isMsg(m) || len(m) < atBody+header {
		return ""
	}
	name, _, _ := bytes.Cut(m[atBody+header:], []byte{0})
	return string(name)
}

// refuse answers a command with an error, or ends its connection.
func refuse(conn net.Conn, command []byte, code int32) error {
	if code == 0 {
		return errStruck
	}
	doc, err := bson.Marshal(bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: "struck by a test"},
		{Key: "code", Value: code}})
	if err != nil {
		return err
	}
	reply := append(make([]byte, atBody), doc...)
	binary.LittleEndian.PutUint32(reply, uint32(len(reply)))
	copy(reply[8:], command[atRequest:atRequest+4])
	binary.LittleEndian.PutUint32(reply[atOp:], opMsg)
	_, err = conn.Write(reply)
	return err
}
