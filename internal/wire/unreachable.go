package wire

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// Unreachable is what the driver found of one server when none was suitable.
type Unreachable struct {
	Address string
	Err     error // why it cannot be used; nil if it answers
}

// UnreachableServers are those of an error that says that no server was
// suitable; ok is false for any other error.
func UnreachableServers(err error) (servers []Unreachable, ok bool) {
	e, ok := errors.AsType[topology.ServerSelectionError](err)
	for _, s := range e.Desc.Servers {
		servers = append(servers, Unreachable{Address: s.Addr.String(), Err: s.LastError})
	}
	return servers, ok
}

// AuthFailed reports that a server refused who logged in.
func AuthFailed(err error) bool {
	_, refused := errors.AsType[*auth.Error](err)
	return refused
}
