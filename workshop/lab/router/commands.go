package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// handler runs one command.
type handler struct {
	do   func(context.Context, *call) (bson.D, error)
	open bool // may be run before the client has proved who it is
}

// commands are all that the router takes.
func commands() map[string]handler {
	all := map[string]handler{
		"saslStart": {saslStart, true}, "saslContinue": {saslContinue, true},
	}
	for _, name := range []string{"hello", "isMaster", "ismaster"} {
		all[name] = handler{hello, true}
	}
	for _, name := range []string{"buildInfo", "buildinfo"} {
		all[name] = handler{buildInfo, true}
	}
	all["ping"], all["logout"] = handler{done, true}, handler{logout, true}
	for _, part := range []map[string]func(context.Context, *call) (bson.D, error){
		reading(), writing(), schemaCommands(), clusterCommands(),
	} {
		for name, do := range part {
			all[name] = handler{do: do}
		}
	}
	return all
}

func reading() map[string]func(context.Context, *call) (bson.D, error) {
	return map[string]func(context.Context, *call) (bson.D, error){
		"find": find, "getMore": getMore, "killCursors": killCursors, "count": count, "distinct": distinct,
		"aggregate": aggregate, "explain": explain, "serverStatus": serverStatus,
		"getParameter": onConfig, "getCmdLineOpts": onConfig, "connectionStatus": connectionStatus, "hostInfo": onConfig, "whatsmyuri": onConfig,
		"killOp": killOp, "usersInfo": onConfig, "rolesInfo": onConfig, "replSetGetStatus": notHere,
	}
}

func writing() map[string]func(context.Context, *call) (bson.D, error) {
	return map[string]func(context.Context, *call) (bson.D, error){
		"insert": write, "update": write, "delete": write, "findAndModify": findAndModify, "findandmodify": findAndModify,
		"commitTransaction": commitTransaction, "abortTransaction": abortTransaction,
		"endSessions": endSessions, "killSessions": endSessions, "refreshSessions": done, "startSession": notHere,
	}
}

// notHere answers commands that a mongos does not take, or that nobody needs here.
func notHere(_ context.Context, c *call) (bson.D, error) {
	return nil, fail(59, "CommandNotFound", "no such command: '%s'", c.name)
}
