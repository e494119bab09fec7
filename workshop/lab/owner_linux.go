package lab

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// connectionOwner returns the index of the process that made a connection to
// us, or client if it was none of them. The kernel's table of connections has
// the inode of the other end, and /proc reports who has that inode open.
func connectionOwner(conn net.Conn, pids []int) int {
	inode := inodeOf(procAddr(conn.RemoteAddr()), procAddr(conn.LocalAddr()))
	if inode == "" {
		return client
	}
	for i, pid := range pids {
		if pid != 0 && hasSocket(pid, inode) {
			return i
		}
	}
	return client
}

// procAddr writes an IPv4 address as /proc/net/tcp does (in host byte order,
// which is little endian wherever there is a mongod).
func procAddr(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || tcp.IP.To4() == nil {
		return ""
	}
	ip := slices.Clone(tcp.IP.To4())
	slices.Reverse(ip)
	return fmt.Sprintf("%X:%04X", []byte(ip), tcp.Port)
}

// inodeOf looks up the socket with these ends.
func inodeOf(local, remote string) string {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer f.Close()
	ends := " " + local + " " + remote + " "
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.Contains(lines.Text(), ends) {
			if fields := strings.Fields(lines.Text()); len(fields) > 9 {
				return fields[9]
			}
		}
	}
	return ""
}

// hasSocket reports whether a process has a socket open.
func hasSocket(pid int, inode string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	want := "socket:[" + inode + "]"
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		return err == nil && target == want
	})
}
