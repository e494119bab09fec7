// Command millrace moves and replicates MongoDB data.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(newApp().run(signals(), os.Args[1:])) }

// errSignal is why the program's context ended after a signal.
var errSignal = errors.New("stopped by a signal")

// signals returns a context that ends at the first interrupt or termination
// signal; the second ends the program at once. What is durable by then stays:
// nothing is lost by it but time.
func signals() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-caught
		cancel(errSignal)
		<-caught
		fmt.Fprintln(os.Stderr, "millrace: stopped at once by a second signal")
		os.Exit(exitFailure)
	}()
	return ctx
}
