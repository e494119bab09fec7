package bench

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"
)

// pcsm is Percona ClusterSync for MongoDB with its own defaults.
func (b *bench) pcsm(st *site, p Peer) follower {
	return follower{
		name: peerPCSM, kind: KindPeer, how: "pcsm reset; pcsm; pcsm start --include-namespaces=" + dataDB + ".*",
		start: func(ctx context.Context, m *meter) (func() error, <-chan struct{}, error) {
			env := []string{"PCSM_SOURCE_URI=" + st.source.uri, "PCSM_TARGET_URI=" + st.target.uri, "PCSM_LOG_LEVEL=warn"}
			if err := runProgram(ctx, env, p.Program, "reset"); err != nil {
				return nil, nil, err
			}
			port, err := freePort(ctx)
			if err != nil {
				return nil, nil, err
			}
			env = append(env, "PCSM_PORT="+port)
			c, err := startChild(ctx, program{name: p.Program, env: env})
			if err != nil {
				return nil, nil, err
			}
			m.runs(c.pid())
			for {
				err := runProgram(ctx, env, p.Program, "start", "--include-namespaces="+dataDB+".*")
				if err == nil {
					return c.stop, c.done, nil
				}
				select {
				case <-c.done:
					return nil, nil, c.wait()
				default:
				}
				// It does not listen yet.
				if !tick(ctx, 20*time.Millisecond) {
					return nil, nil, fmt.Errorf("start pcsm: %w (last: %w)", ctx.Err(), err)
				}
			}
		},
	}
}

// runProgram runs a program that ends soon.
func runProgram(ctx context.Context, env []string, name string, args ...string) error {
	c, err := startChild(ctx, program{name: name, args: args, env: env})
	if err != nil {
		return err
	}
	return c.wait()
}

// freePort is a port of the loopback interface that nobody listens on now.
func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return "", fmt.Errorf("no TCP address: %s", l.Addr())
	}
	return strconv.Itoa(addr.Port), nil
}
