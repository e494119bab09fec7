package router

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// AppName is the application name of the lab's own connections. A Gate lets those do everything, as a shard from 8.0
// on does with connections of routers.
const AppName = "millrace lab"

// Gate stands before a member of a shard, of any version, and refuses direct commands as a member from 8.0 on does.
// Error 13 is the answer to all but those of the manual's page "Sharded Node Direct Commands" and reads of admin,
// config and local. It passes on all that members, routers and the lab send. It knows them by their handshakes. It
// reads no TLS. The role directShardOperations, with which 8.0 permits all, does not exist here.
type Gate struct {
	listener net.Listener
	upstream string // the member's own address
	wg       sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool // of both sides
}

// StartGate listens on an address and forwards to a member. ctx bounds the start alone.
func StartGate(ctx context.Context, listen, upstream string) (*Gate, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("router: listen before %s: %w", upstream, err)
	}
	g := &Gate{listener: listener, upstream: upstream, conns: map[net.Conn]bool{}}
	g.wg.Go(g.accept)
	return g, nil
}

// Host is the host:port on which the gate listens.
func (g *Gate) Host() string { return g.listener.Addr().String() }

// Close ends all connections and waits for all that serve them. Closing twice does no harm.
func (g *Gate) Close() error {
	err := g.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	g.mu.Lock()
	g.closed = true
	for conn := range g.conns {
		_ = conn.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
	return err
}

func (g *Gate) accept() {
	for {
		conn, err := g.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // that one has gone before it was served
		}
		g.wg.Go(func() { g.serve(conn) })
	}
}

// add makes a connection known to Close, and closes it when that has begun.
func (g *Gate) add(conn net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		_ = conn.Close()
		return false
	}
	g.conns[conn] = true
	return true
}

func (g *Gate) drop(conn net.Conn) {
	g.mu.Lock()
	delete(g.conns, conn)
	g.mu.Unlock()
	_ = conn.Close()
}

// serve connects a client with the member until either hangs up.
func (g *Gate) serve(near net.Conn) {
	if !g.add(near) {
		return
	}
	defer g.drop(near)
	far, err := net.Dial("tcp", g.upstream)
	if err != nil || !g.add(far) {
		return // as a member does that is down
	}
	defer g.drop(far)
	p := &passage{near: near, far: far}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer near.Close()
		_, _ = io.Copy(p, far)
	})
	_ = p.forward() // whatever ended it, the connection ends
	_ = far.Close()
	wg.Wait()
}

// passage is a client's connection through a gate.
type passage struct {
	near, far net.Conn
	mu        sync.Mutex // of what is written to the client
}

// Write sends the client a part of a reply, the member's or the gate's own.
func (p *passage) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.near.Write(b)
}

// forward passes on what the client sends and answers what is refused. A client waits for each reply before it sends
// more, so that the gate's own reply never comes into the middle of another one.
func (p *passage) forward() error {
	in := bufio.NewReaderSize(p.near, 64<<10)
	for {
		msg, err := readMessage(in)
		if err != nil {
			return err
		}
		req, err := parseRequest(msg)
		if err != nil {
			return err
		}
		cmd := fields(req.body)
		if isHandshake(cmd) {
			if msg = plainHandshake(msg, req); trusted(req.body) {
				if _, err := p.far.Write(msg); err != nil {
					return fmt.Errorf("write to the member: %w", err)
				}
				_, err = io.Copy(p.far, in)
				return err
			}
		}
		if refusal := refusalOf(req, cmd); refusal != nil {
			if err := p.answer(msg, req, refusal); err != nil {
				return err
			}
			continue
		}
		if _, err := p.far.Write(msg); err != nil {
			return fmt.Errorf("write to the member: %w", err)
		}
	}
}

// answer sends the client an error for a message, unless it wants no reply.
func (p *passage) answer(msg []byte, req *request, refusal error) error {
	if req.moreToCome {
		return nil
	}
	body, err := encode(errorReply(refusal))
	if err != nil {
		return err
	}
	write := appendMsg
	if binary.LittleEndian.Uint32(msg[12:]) == opQuery {
		write = appendReply
	}
	_, err = p.Write(write(nil, int32(binary.LittleEndian.Uint32(msg[4:])), body))
	return err
}

// parseRequest reads a framed message of a client.
func parseRequest(msg []byte) (*request, error) {
	switch op := binary.LittleEndian.Uint32(msg[12:]); op {
	case opMsg:
		return parseMsg(msg[headerSize:])
	case opQuery:
		return parseQuery(msg[headerSize:])
	default:
		return nil, fmt.Errorf("unsupported opcode %d", op)
	}
}

func isHandshake(cmd bson.D) bool {
	return len(cmd) > 0 && slices.Contains([]string{"hello", "isMaster", "ismaster"}, cmd[0].Key)
}

// trusted reports the handshake of a server or of the lab.
func trusted(hello bson.Raw) bool {
	_, server := hello.Lookup("internalClient").DocumentOK()
	return server || text(hello.Lookup("client", "application", "name")) == AppName
}

// plainHandshake is a handshake that offers no compression, which the gate does not read.
func plainHandshake(msg []byte, req *request) []byte {
	offers, err := req.body.LookupErr("compression")
	if err != nil || offers.Type != bson.TypeArray || len(req.sequences) > 0 {
		return msg
	}
	body, err := bson.Marshal(with(fields(req.body), "compression", bson.A{}))
	if err != nil {
		return msg
	}
	at := len(msg) - len(req.body) // the body comes last, but for a checksum
	if binary.LittleEndian.Uint32(msg[12:]) == opMsg && binary.LittleEndian.Uint32(msg[headerSize:])&flagChecksum != 0 {
		at -= 4
		binary.LittleEndian.PutUint32(msg[headerSize:], binary.LittleEndian.Uint32(msg[headerSize:])&^flagChecksum)
	}
	out := append(msg[:at:at], body...)
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out
}

// refusalOf is the error of a command that a member refuses on a direct connection, nil for others.
func refusalOf(req *request, cmd bson.D) error {
	if len(cmd) == 0 {
		return nil // the member has an error for that
	}
	name, db := cmd[0].Key, req.db
	if v := get(cmd, "$db"); v.Type == bson.TypeString {
		db = text(v)
	}
	if permitted(name) || ownDatabase(db) && reads(name) {
		return nil
	}
	ns := db
	if coll := text(get(cmd, name)); coll != "" {
		ns += "." + coll
	}
	return fail(13, "Unauthorized", "You are connecting to a sharded cluster improperly by connecting directly to a "+
		"shard. Please connect to the cluster via a router (mongos). Command: %s, Namespace: %s", name, ns)
}

// ownDatabase reports a database that each member has for itself.
func ownDatabase(db string) bool { return db == "admin" || db == "config" || db == "local" }

// reads reports commands that read a member's own databases.
func reads(name string) bool {
	switch name {
	case "find", "aggregate", "count", "distinct", "getMore", "explain", "listCollections", "listIndexes", "collStats":
		return true
	}
	return false
}

// permitted reports commands that are permitted in all databases. The first lines are of handshakes and sessions,
// the others those of the manual (8.0, Sharded Node Direct Commands).
func permitted(name string) bool {
	const list = ` hello isMaster ismaster _isSelf saslStart saslContinue getnonce refreshSessions shutdown
		abortTransaction appendOplogNote authenticate autoCompact buildInfo buildinfo commitTransaction compact
		connectionStatus connPoolStats createRole createUser currentOp dbHash dbhash dropAllRolesFromDatabase
		dropAllUsersFromDatabase dropRole dropUser endSessions flushRouterConfig fsync fsyncUnlock getAuditConfig
		getClusterParameter getCmdLineOpts getLog getParameter getShardMap grantPrivilegesToRole grantRolesToRole
		grantRolesToUser hostInfo invalidateUserCache killAllSessions killAllSessionsByPattern killCursors killOp
		killSessions listCommands lockInfo logApplicationMessage logout logRotate ping profile replSetAbortPrimaryCatchUp
		replSetFreeze replSetGetConfig replSetGetStatus replSetMaintenance replSetReconfig replSetResizeOplog
		replSetStepDown replSetSyncFrom revokePrivilegesFromRole revokeRolesFromRole revokeRolesFromUser rolesInfo
		rotateCertificates serverStatus setParameter shardingState startSession top updateRole updateUser usersInfo
		whatsmyuri `
	return slices.Contains(strings.Fields(list), name)
}
