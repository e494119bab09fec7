package wire

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// Unreachable is a server that the driver found unsuitable.
type Unreachable struct {
	Address string
	Err     error  // why it cannot be used; nil if it answers
	Role    string // its role in its set with its tags, such as "the primary"
}

// Unsuitable is the driver's error when no server was suitable.
type Unsuitable struct {
	Servers []Unreachable
	Text    string // of the driver's error, which describes all of the deployment
}

// UnsuitableServers finds an Unsuitable in an error.
func UnsuitableServers(err error) (u Unsuitable, ok bool) {
	e, ok := errors.AsType[topology.ServerSelectionError](err)
	if !ok {
		return u, false
	}
	u.Text = e.Error()
	for _, s := range e.Desc.Servers {
		u.Servers = append(u.Servers, Unreachable{Address: s.Addr.String(), Err: s.LastError, Role: roleOf(s)})
	}
	return u, true
}

func roleOf(s description.Server) string {
	role := "no member that can be read"
	switch s.Kind {
	case description.ServerKindRSPrimary:
		role = "the primary"
	case description.ServerKindRSSecondary:
		role = "a secondary"
	case description.ServerKindRSArbiter:
		return "an arbiter"
	case description.ServerKindMongos:
		return "a router"
	}
	if len(s.Tags) == 0 {
		return role
	}
	return role + " with tags " + tags(s.Tags)
}

// AuthFailed reports that a server refused a login.
func AuthFailed(err error) bool {
	_, refused := errors.AsType[*auth.Error](err)
	return refused
}
