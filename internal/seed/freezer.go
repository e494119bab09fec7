package seed

import "context"

// Freezer makes a member's files stand still.
type Freezer interface {
	// Freeze returns when the files stand still. They do so until the Thaw
	// is released.
	Freeze(ctx context.Context) (Thaw, error)
}

// Thaw is a frozen member.
type Thaw interface {
	// Lost is closed when the files no longer stand still: what was read
	// since may be torn.
	Lost() <-chan struct{}
	// Release lets the member go on. It reports whether the files stood still
	// all the time.
	Release() error
}

// stopped is a member that is shut down: its lock file is held, so that it
// stands still all the time.
type stopped struct{}

func (stopped) Freeze(context.Context) (Thaw, error) { return stopped{}, nil }
func (stopped) Lost() <-chan struct{}                { return nil }
func (stopped) Release() error                       { return nil }
