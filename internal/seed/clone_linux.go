package seed

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// cloneFile makes to share all of from's blocks, in a moment and without a
// byte read. Its error is errCannotClone where the file system cannot.
func cloneFile(to, from *os.File) error {
	err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
	for _, cannot := range []error{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.EPERM} {
		if errors.Is(err, cannot) {
			return errCannotClone
		}
	}
	if err != nil {
		return fmt.Errorf("seed: clone %s: %w", from.Name(), explain(err))
	}
	return nil
}
