// Command millrace moves and replicates MongoDB data.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signals()
	defer stop()
	return newApp().run(ctx, os.Args[1:])
}

// errSignal is why the program's context ended after a signal.
var errSignal = errors.New("stopped by a signal")

// signals returns a context that ends at the first interrupt or termination
// signal; the second ends the program at once. What is durable by then stays:
// nothing is lost by it but time.
func signals() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-caught:
			cancel(errSignal)
		case <-done:
			return
		}
		select {
		case <-caught:
			fmt.Fprintln(os.Stderr, "millrace: stopped at once by a second signal")
			os.Exit(exitFailure)
		case <-done:
		}
	})
	return ctx, func() {
		signal.Stop(caught)
		close(done)
		wg.Wait()
		cancel(nil)
	}
}
