package seed

import (
	"io/fs"
	"syscall"
)

// identity is a file's change time in nanoseconds and its inode.
func identity(info fs.FileInfo) (ctime int64, inode uint64, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return st.Ctim.Nano(), st.Ino, true
}
