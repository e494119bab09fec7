package bench

import (
	"context"
	"path/filepath"
)

// dsync is dsync with its highest ordinary load level. It copies no indexes.
func (b *bench) dsync(st *site, p Peer) follower {
	return follower{
		name: peerDsync, kind: KindPeer, how: "dsync --mode Full --load-level High --namespace " + dataDB,
		start: func(ctx context.Context, m *meter) (func() error, <-chan struct{}, error) {
			port, err := freePort(ctx)
			if err != nil {
				return nil, nil, err
			}
			c, err := startChild(ctx, program{name: p.Program, args: []string{
				"--mode", "Full", "--load-level", "High", "--verbosity", "WARN", "--web-port", port,
				"--logfile", filepath.Join(b.dir, "dsync.log"), "--namespace", dataDB, st.source.uri, st.target.uri,
			}})
			if err != nil {
				return nil, nil, err
			}
			m.runs(c.pid())
			return c.stop, c.done, nil
		},
	}
}
